"""The ceiling of computation: the rate that large matrix products reach on a device."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

_SIZES = (512, 1024, 2048, 4096, 8192)  # Rows and columns; the largest product takes 1.6 ms of an H100 in bfloat16.
_ENOUGH_US = 5_000.0  # A product of this length keeps a device busy: starting it is a thousandth of its time.
_PRODUCTS = 5


@functools.lru_cache
def matmul_flop_per_second(device: Device, dtype: torch.dtype) -> float:
    """The best rate among square products of rising size, floating-point operations per second; 0.0 if torch has no
    product of this dtype. It is measured once in a process: a fifth of a second, since slow devices stop early."""
    import torch

    best = 0.0
    generator = torch.Generator(device.torch_device).manual_seed(0)  # The test's own state stays as it is.
    for size in _SIZES:
        try:
            # Products of constants draw less power, so that clocks would stay higher than those of any real work.
            left, right = (
                torch.randn(size, size, generator=generator, device=device.torch_device).to(dtype) for _ in range(2)
            )
            times_us = [_product_us(device, left, right) for _ in range(_PRODUCTS + 1)]
        except (RuntimeError, TypeError):  # No such product, or no memory for a larger one.
            break
        middle = statistics.median(times_us[1:])  # The first product loads its kernel.
        best = max(best, 2 * size**3 / (middle * 1e-6))
        if middle > _ENOUGH_US:
            break
    return best


def _product_us(device: Device, left: torch.Tensor, right: torch.Tensor) -> float:
    device.synchronize()
    start = device.now_us()
    left @ right
    device.synchronize()
    return device.now_us() - start
