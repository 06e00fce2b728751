"""The figures of the PagedAttention paper from simulation and measurement: pictures, tables, and what differs."""
