"""Seeds the random numbers of all present devices, without the cost of absent ones."""

from __future__ import annotations

import functools
from types import ModuleType

import torch


def seed_all(seed: int) -> None:
    """Seed the CPU and the accelerator of this machine, as `torch.manual_seed` does.

    `torch.manual_seed` queries every kind of device, and keeps a stack trace for each absent or unused one. At the
    stack depth of tests, this takes a millisecond per call.
    """
    torch.default_generator.manual_seed(seed)
    accelerator = _accelerator()
    if accelerator is not None:
        accelerator.manual_seed_all(seed)


@functools.cache
def _accelerator() -> ModuleType | None:
    kind = torch.accelerator.current_accelerator(check_available=True)
    return None if kind is None else torch.get_device_module(kind)
