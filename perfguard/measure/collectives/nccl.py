"""Names of NCCL's kernels, and of RCCL's, as a profile shows them: the only place that knows them.

`ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)`; older versions have `ncclKernel_…`. A kernel for
several exchanges at once is `ncclDevKernel_Generic_…`.
"""

from __future__ import annotations

import re

_KERNEL = re.compile(r"nccl\w*Kernel_([A-Za-z]+)")
_ANY = "Generic"

# Kind of exchange -> the kernels that may run it. All-to-all, gather and scatter are sends and receives, and an uneven
# all_gather or reduce_scatter of tensors in a list is one broadcast or reduction for each rank.
_KERNELS = {
    "all_gather": ("AllGather", "Broadcast"), "all_reduce": ("AllReduce",), "barrier": ("AllReduce",),
    "all_to_all": ("SendRecv", "AlltoAll"), "broadcast": ("Broadcast",), "reduce": ("Reduce",),
    "reduce_scatter": ("ReduceScatter", "Reduce"), "gather": ("SendRecv", "Gather"), "scatter": ("SendRecv", "Scatter"),
    "send": ("SendRecv",), "recv": ("SendRecv",),
}  # fmt: skip


def is_exchange(kernel: str) -> bool:
    """Whether a kernel exchanges data with other ranks."""
    return _KERNEL.match(kernel) is not None


def runs(kernel: str, kind: str) -> bool:
    """Whether `kernel` may be what runs an exchange of this kind."""
    found = _KERNEL.match(kernel)
    return found is not None and (found[1] == _ANY or found[1] in _KERNELS.get(kind, ()))
