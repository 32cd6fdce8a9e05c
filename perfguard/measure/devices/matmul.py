"""The ceiling of computation: the rate that large matrix products reach on a device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

_SIZES = (256, 512, 1024, 2048, 4096, 8192)  # The largest product takes 1.6 ms of an H100 in bfloat16.
_LONGEST_US = 300_000.0  # A product may take this long: a case is asked to wait for it once.
_MOST_US = 100_000.0  # The time for further products of one size.
_PRODUCTS = 5


@functools.lru_cache
def matmul_flop_per_second(device: Device, dtype: torch.dtype) -> float:
    """The best rate among square products of rising size, floating-point operations per second; 0.0 if torch has no
    product of this dtype. It is measured once in a process, in about half a second at most: slow devices stop early."""
    import torch

    best = 0.0
    generator = torch.Generator().manual_seed(0)  # The test's own state stays as it is.
    # Products of constants draw less power, so that clocks would stay higher than those of any real work.
    block = torch.randn(_SIZES[0], _SIZES[0], generator=generator)
    for size in _SIZES if dtype.itemsize > 1 else ():  # Fast products of fp8 are other calls, with scales.
        try:
            times = size // _SIZES[0]
            left, right = (block.to(device.torch_device, dtype).repeat(times, times) for _ in range(2))
            times_us = [_product_us(device, left, right)]
            while len(times_us) <= _PRODUCTS and sum(times_us) < _MOST_US:
                times_us.append(_product_us(device, left, right))
        except (RuntimeError, TypeError):  # No such product, or no memory for a larger one.
            break
        # The first product loads its kernel, and others may share the machine.
        best = max(best, 2 * size**3 / (min(times_us) * 1e-6))
        if 8 * min(times_us) > _LONGEST_US:  # The next product has eight times the operations.
            break
    return best


def _product_us(device: Device, left: torch.Tensor, right: torch.Tensor) -> float:
    device.synchronize()
    start = device.now_us()
    left @ right
    device.synchronize()
    return device.now_us() - start
