"""Reasons for BROKEN: what a raised exception shows of the case and the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from perfguard.model.errors import is_out_of_memory
from perfguard.model.units import format_bytes

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?([KMGT]?i?B|bytes)")
_NO_TRITON_DRIVER = re.compile(r"\b0 active drivers")  # Triton's message if it found no GPU
_INTERPRET = "Triton found no GPU: set TRITON_INTERPRET=1 to run its kernels in the interpreter (docs/interpreter.md)"
_FREE = re.compile(r"of which ([\d.]+ [KMGT]?i?B) is free")


def describe_error(when: str, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """`call raised ValueError: …`, or the requested size if memory ran out. One line.

    Args:
        when: pytest's phase that raised: setup, call or teardown.
    """
    error = excinfo.value
    if not is_out_of_memory(error):
        said = f"{when} raised {excinfo.exconly(tryshort=True)}".splitlines()[0]
        return f"{said}; {_INTERPRET}" if _NO_TRITON_DRIVER.search(str(error)) else said
    asked, free = _ASKED.search(str(error)), _FREE.search(str(error))
    said = f"{when} ran out of memory"
    if asked:
        number, unit = asked.groups()
        said += f": asked for {format_bytes(float(number)) if unit == 'bytes' else f'{number} {unit}'}"
        said += f", {free[1]} free" if free else ""
    return f"{said}; make the case smaller, or free the device's memory"


def is_lost(device: Device) -> bool:
    """Whether the device no longer answers this process: after an illegal access, every use of it raises."""
    if not device.asynchronous:
        return False
    try:
        device.synchronize()
    except Exception:
        return True
    return False
