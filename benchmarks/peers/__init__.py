"""The kernels beside named peers: what else does the same job, timed in turns in one process."""
