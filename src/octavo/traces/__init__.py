"""Recorded lengths and arrival traces, read from files into requests that the simulator and the benchmarks can send."""
