"""Decisions: which request runs, in which blocks. Standard library and msgspec only; no clock, no I/O, no arrays."""
