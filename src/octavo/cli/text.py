"""Numbers as words."""

from __future__ import annotations


def megabytes(num_bytes: int) -> str:
    """Bytes for people: 1 MB is 10^6 bytes."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def count(number: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
