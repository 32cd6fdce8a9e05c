"""torch's operators: their schemas, how they are dispatched, and storages that tell tensors apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfguard._compat.private import Private

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload as OpOverload  # noqa: PLC0414  # for others

_SEEN = "seeing the operators inside a library's operator"

OVERLOAD = Private("torch._ops", "OpOverload", "naming operators")
MODES = Private("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack", _SEEN)
KEYS = Private("torch", "_C._dispatch_keys", _SEEN)
KEYSET_AFTER = Private("torch", "_C._dispatch_keyset_full_after", _SEEN)
DISPATCH_KEY = Private("torch", "_C.DispatchKey", _SEEN)
CUSTOM = Private("torch._library.custom_ops", "OPDEFS", "following operators that a user made of Triton kernels")

NAMES = (
    Private("torch", "_C.DispatchKey.CompositeImplicitAutograd", _SEEN),
    Private("torch", "_C.DispatchKey.Python", _SEEN),
    Private("torch._ops", "OpOverload.has_kernel_for_dispatch_key", _SEEN),
    Private("torch._ops", "OpOverload.redispatch", _SEEN),
    Private("torch", "ops.aten.add.Tensor._schema", "names of an operator's arguments"),
    Private("torch", "UntypedStorage._cdata", "telling storages apart"),
)


def schema_of(operator: Any) -> Any:
    """An operator's schema: its name, its arguments."""
    return operator._schema


def storage_address(tensor: torch.Tensor) -> int:
    """A number that is equal for tensors in the same storage, as long as it lives."""
    return int(tensor.untyped_storage()._cdata)


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
