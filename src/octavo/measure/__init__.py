"""Times kernels and the worker: `octavo bench kernels`, and the measured figures."""
