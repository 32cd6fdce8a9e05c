"""A process in which tensors in host memory claim to be on a GPU of another architecture.

Operators still run on the host, where the data is. Only Python's queries of tensors and of torch.cuda are answered as
on the target. Use it in a child process: torch remembers that a GPU was requested, and the user's code may as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from perfguard._compat.torch_internals import own_implementation
from perfguard._compat.torch_utils import DispatchMode
from perfguard.measure.binaries.targets import Target
from perfguard.measure.devices.operators import COPIES, READS

_FRESH = ("empty", "new_empty")  # operators whose result is uninitialised
_FILLS = {
    f"aten.{name}" for name in (
        "zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones",
        "full", "full_like", "new_full", "fill_",
    )
}  # fmt: skip
_MEMORY = COPIES | _FILLS | READS
_FROM_VALUES = ("tensor", "as_tensor")  # functions that no dispatch mode sees


@contextmanager
def pretended(target: Target) -> Iterator[None]:
    """Put every tensor on `cuda:0`, a `target`, while inside. Operators need `Unwritten` to run."""
    device = torch.device("cuda", 0)
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "get_device_capability": target.capability, "get_device_name": target.chip,
        "get_device_properties": _properties(target), "get_arch_list": [target.name], "synchronize": None,
        "empty_cache": None, "set_device": None, "_lazy_init": None, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "current_stream": SimpleNamespace(cuda_stream=0, device=device),
        "is_current_stream_capturing": False, "is_bf16_supported": True,
        "get_sync_debug_mode": 0, "set_sync_debug_mode": None,
    }  # fmt: skip
    hip = target.backend == "hip"
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _always(answer), create=True))
        stack.enter_context(mock.patch.object(torch.version, "hip", "7.0" if hip else None))
        stack.enter_context(mock.patch.object(torch.version, "cuda", None if hip else "13.0"))
        stack.enter_context(mock.patch.object(torch.Tensor, "device", property(lambda tensor: device)))
        stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", property(lambda tensor: True)))
        stack.enter_context(mock.patch.object(torch.Tensor, "is_cpu", property(lambda tensor: False)))
        for name in _FROM_VALUES:
            stack.enter_context(mock.patch.object(torch, name, _on_the_host(getattr(torch, name))))
        yield


def _always(answer: Any) -> Any:
    return lambda *_, **__: answer


def _on_the_host(function: Any) -> Any:
    """The function with its `device` argument dropped, unless it is "meta"."""

    def called(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        return function(
            *args, device=device if device is not None and torch.device(device).type == "meta" else None, **kwargs
        )

    return called


def _properties(target: Target) -> SimpleNamespace:
    """The known properties of the chip; any other name raises AttributeError, which names it."""
    major, minor = target.capability
    return SimpleNamespace(
        name=target.chip,
        major=major,
        minor=minor,
        multi_processor_count=target.processors,
        warp_size=target.warp_width,
        max_threads_per_multi_processor=target.warps * target.warp_width,
        shared_memory_per_block_optin=target.block_shared_bytes,
        shared_memory_per_multiprocessor=target.shared_bytes,
        regs_per_multiprocessor=target.registers or 65536,
        gcnArchName=target.name,
    )


class Unwritten(DispatchMode):
    """Fills uninitialised memory with zeros; with `on_the_host`, operators for a GPU run on the host.

    The kernels do not run, so their outputs would be uninitialised. Indices among them would be invalid, and differ in
    every run.
    """

    def __init__(self, on_the_host: bool, note: Callable[[str], None] = lambda name: None) -> None:
        """`note` is called with each operator that fills, copies or reads memory, e.g. `aten.clone`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_the_host = on_the_host
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        own = own_implementation(func)
        if own is not None:  # a user's operator: its own calls must pass through here too
            with self:
                return own(*args, **kwargs)
        if str(func.overloadpacket) in _MEMORY:
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
