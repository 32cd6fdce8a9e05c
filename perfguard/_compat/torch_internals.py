"""torch, imported when a name is asked for: its operators, storages, the profiler's events, the pools of a capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfguard._compat.private import Private, privates

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload as OpOverload  # noqa: PLC0414  # for others

_SEEN = "seeing the operators inside a library's operator"
_CAPTURE = "leaving the pool of a capture that failed"

OVERLOAD = Private("torch._ops", "OpOverload", "naming operators")
MODES = Private("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack", _SEEN)
KEYS = Private("torch", "_C._dispatch_keys", _SEEN)
KEYSET_AFTER = Private("torch", "_C._dispatch_keyset_full_after", _SEEN)
DISPATCH_KEY = Private("torch", "_C.DispatchKey", _SEEN)
CUSTOM = Private("torch._library.custom_ops", "OPDEFS", "following operators that a user made of Triton kernels")
EVENT = Private("torch._C._profiler", "_EventType", "reading the profiler's allocations")
DEVICE_TYPE = Private("torch.autograd", "DeviceType", "telling the profiler's device work from the host's")
END_ALLOCATE = Private("torch", "_C._cuda_endAllocateToPool", _CAPTURE)
RELEASE_POOL = Private("torch", "_C._cuda_releasePool", _CAPTURE)

#: Only a torch that is built for a GPU has these.
OF_GPUS = (
    END_ALLOCATE,
    RELEASE_POOL,
    Private("torch.cuda", "_sleep", "a wait on the device behind which work is enqueued"),
)

NAMES = (
    *privates("torch._C", _SEEN, "DispatchKey.CompositeImplicitAutograd DispatchKey.Python"),
    *privates("torch._ops", _SEEN, "OpOverload.has_kernel_for_dispatch_key OpOverload.redispatch"),
    Private("torch", "ops.aten.add.Tensor._schema", "names of an operator's arguments"),
    Private("torch", "UntypedStorage._cdata", "telling storages apart"),
    Private("torch._C._profiler", "_EventType.Allocation", "reading the profiler's allocations"),
)


def schema_of(operator: Any) -> Any:
    """An operator's schema: its name, its arguments."""
    return operator._schema


def storage_address(tensor: torch.Tensor) -> int:
    """A number that is equal for tensors in the same storage, as long as it lives."""
    return address_of(tensor.untyped_storage())


def address_of(storage: torch.UntypedStorage) -> int:
    """The same of a storage."""
    return int(storage._cdata)


def has_custom_operators() -> bool:
    """Whether an operator was made by torch.library.custom_op in this process."""
    return bool(CUSTOM.get())


def own_implementation(operator: Any) -> Any:
    """The Python function that an operator made by torch.library.custom_op runs on a GPU; None for other operators."""
    definition = CUSTOM.get().get(schema_of(operator).name)
    if definition is None:
        return None
    found = getattr(definition, "_backend_fns", {})
    return found.get("cuda") or found.get(None)


def leave_pool(index: int, pool: Any) -> None:
    """Leave the pool that a failed capture keeps the allocator in; torch has no public function for it."""
    with contextlib.suppress(Exception):  # raises if torch has left the pool itself; torch then releases it too
        END_ALLOCATE.get()(index, pool)
        RELEASE_POOL.get()(index, pool)


def spin_of(backend: Any) -> Callable[[int], None] | None:
    """The backend's kernel that waits for a number of cycles; None where there is none, as in torch.xpu."""
    spin: Callable[[int], None] | None = getattr(backend, "_sleep", None)
    return spin
