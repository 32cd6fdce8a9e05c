"""Random numbers of all devices that are there, without the price of those that are not."""

from __future__ import annotations

import functools
from types import ModuleType

import torch


def seed_all(seed: int) -> None:
    """What `torch.manual_seed` does, for the processor and the accelerator of this machine.

    That one asks every kind of device there could be, and for one that is not there or not in use keeps a stack trace:
    a millisecond a call, as deep as tests run.
    """
    torch.default_generator.manual_seed(seed)
    accelerator = _accelerator()
    if accelerator is not None:
        accelerator.manual_seed_all(seed)


@functools.cache
def _accelerator() -> ModuleType | None:
    kind = torch.accelerator.current_accelerator(check_available=True)
    return None if kind is None else torch.get_device_module(kind)
