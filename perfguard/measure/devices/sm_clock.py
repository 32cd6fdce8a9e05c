"""The actual clock of an NVIDIA GPU's processors (SMs): cycles per nanosecond between two marks on its queue.

The driver's reading (NVML) lags by a tenth of a second, and is the clock that was set. Under a power cap the processors
run slower, and differently in every block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
import triton
import triton.language as tl

_SLOTS = 1024  # No GPU has so many processors.
_CYCLES_PER_US_LIMITS = (100.0, 10_000.0)  # Outside these limits the counters are not cycles and nanoseconds.


@triton.jit
def read_counters(out_ptr):  # type: ignore[no-untyped-def]
    """Write to out (1024, 2) int64, at the processor's number, its cycles and the device's common nanoseconds."""
    unit = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    nanos = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(out_ptr + unit * 2, cycles)
    tl.store(out_ptr + unit * 2 + 1, nanos)


class Mark:
    """A reading of the counters at one position in the queue."""

    def __init__(self, device: torch.device, units: int) -> None:
        """Enqueue the reading. `units`: number of processors of the device."""
        self._on_device = torch.zeros(_SLOTS, 2, dtype=torch.int64, device=device)
        read_counters[(units,)](self._on_device, num_warps=1)

    @cached_property
    def _seen(self) -> torch.Tensor:
        """The counters on the host, (1024, 2) int64; cached, since a mark ends one interval and begins the next."""
        return self._on_device.cpu()

    def mhz_until(self, end: object) -> float | None:
        """Mean clock up to `end`, MHz: the median over the processors on which both marks ran; None without any."""
        assert isinstance(end, Mark)
        first, last = self._seen, end._seen
        ran = (first[:, 1] > 0) & (last[:, 1] > first[:, 1])
        if not ran.any():
            return None
        cycles, nanos = (last - first)[ran].double().unbind(1)
        mhz = float((1e3 * cycles / nanos).median())
        least, most = _CYCLES_PER_US_LIMITS
        return mhz if least < mhz < most else None


def proven(device: torch.device, units: int) -> Callable[[], Mark]:
    """A function that enqueues a mark, compiled and tested.

    Raises:
        RuntimeError: the counters give no plausible clock.
    """
    first = Mark(device, units)
    last = Mark(device, units)  # The first mark includes compilation.
    if first.mhz_until(last) is None:
        raise RuntimeError("the cycle counters give no plausible clock")
    return lambda: Mark(device, units)
