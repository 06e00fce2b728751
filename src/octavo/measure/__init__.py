"""Kernels beside what the machine can do: `octavo bench kernels`."""
