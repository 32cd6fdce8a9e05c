"""A dispatch mode for calls whose kernels do not run: memory that they would write is zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perfguard._compat.torch_internals import own_implementation
from perfguard._compat.torch_utils import DispatchMode
from perfguard.measure.devices.operator_kinds import COPIES, READS

_FRESH = ("empty", "new_empty")  # These operators leave their result uninitialised.
_FILLS = {
    f"aten.{name}" for name in (
        "zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones",
        "full", "full_like", "new_full", "fill_",
    )
}  # fmt: skip
#: Operators that fill, copy or read memory.
MEMORY = COPIES | _FILLS | READS


class Unwritten(DispatchMode):
    """Fills uninitialised memory with zeros; with `on_the_host`, operators for a GPU run on the host.

    The kernels do not run, so their outputs would be uninitialised. Indices among them would be invalid and would
    differ in every run.
    """

    def __init__(self, on_the_host: bool, note: Callable[[str], None] = lambda name: None) -> None:
        """`note` is called with each operator that is no view, e.g. `aten.clone`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_the_host = on_the_host
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        own = own_implementation(func)
        if own is not None:  # Calls within a user's operator are followed, too.
            with self:
                return own(*args, **kwargs)
        if not func.is_view:
            self.note(str(func.overloadpacket))
        device = kwargs.get("device")
        if self.on_the_host and isinstance(device, torch.device) and device.type != "meta":
            kwargs["device"] = torch.device("cpu")
        if self.on_the_host and kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__.startswith(_FRESH) and isinstance(result, torch.Tensor):
            result.zero_()
        return result
