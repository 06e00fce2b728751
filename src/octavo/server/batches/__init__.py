"""Batches: requests in the lines of a file."""
