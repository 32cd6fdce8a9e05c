"""Models of `kernels.layers` over several ranks: experts, heads and widths, data, and pipelines.

    from kernels.parallel.model import parallelize        FSDP2 with experts, heads and widths over ranks
    from kernels.parallel.pipeline import build_stages, dual_pipe_v
    import kernels.parallel.sharding                     element-wise and row-wise operators take DTensors

Imports nothing by itself: torch's distributed tensors and pipelines take a second.
"""
