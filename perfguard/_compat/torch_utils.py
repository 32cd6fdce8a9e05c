"""torch.utils: the base class of our dispatch modes, and the trees of containers that calls take and return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from perfguard._compat.private import Private, privates
from perfguard._compat.torch_compiler import is_compiler_loaded

_MODES = "torch.utils._python_dispatch"

NAMES = (
    Private(_MODES, "TorchDispatchMode", "seeing every operator of a call"),
    Private(_MODES, "TorchDispatchMode.__init_subclass__", "leaving torch.compile unloaded where nothing is compiled"),
    Private(_MODES, "TorchDispatchMode.ignore_compile_internals", "seeing the operators of a compiled call"),
    *privates(
        "torch.utils._pytree",
        "finding the tensors in what a call takes and returns",
        "keystr tree_flatten tree_flatten_with_path tree_leaves tree_map tree_unflatten",
    ),
)

keystr = _pytree.keystr
tree_flatten = _pytree.tree_flatten
tree_flatten_with_path = _pytree.tree_flatten_with_path
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_unflatten = _pytree.tree_unflatten


# Torch splits an operator on these types into operators on plain tensors. A mode that leaves the split to torch sees
# the plain operators, including those that move a DTensor's data between ranks.
_UNFOLDED = {"DTensor", "AsyncCollectiveTensor"}


PLAIN = (torch.Tensor, torch.nn.Parameter)  # Other subclasses may behave differently.


def are_unfolded(types: Iterable[type]) -> bool:
    """Whether torch splits an operator on these types, so that a mode has to return NotImplemented."""
    return any(each.__name__ in _UNFOLDED for each in types)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its own storage and memory, or represents such a tensor (FakeTensor). Other subclasses may
    have a storage without memory."""
    return type(tensor) in PLAIN or type(tensor).__name__ == "FakeTensor"


def is_fake(kind: type) -> bool:
    """Whether tensors of this type, with which torch traces, have a shape but no data."""
    return kind.__name__ in ("FakeTensor", "FunctionalTensor")


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """A TorchDispatchMode whose `__torch_dispatch__` has torch's wrapper only if torch.compile is loaded.

    torch wraps that method so that torch.compile does not trace it. The wrapper's first call imports the compiler and
    Triton, which takes seconds in every process, also in those that compile nothing. The wrapper is therefore used from
    the first `with` that finds the compiler loaded. If the compiler is loaded within a `with`, the rest of that `with`
    may be traced, which costs time and changes no result.
    """

    _plain: Any
    _untraced: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = vars(cls).get("__torch_dispatch__")
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if plain is not None:
            cls._plain, cls._untraced = plain, cls.__torch_dispatch__

    def __enter__(self) -> Any:
        mode = type(self)
        method = mode._untraced if is_compiler_loaded() else mode._plain
        type.__setattr__(mode, "__torch_dispatch__", method)
        return super().__enter__()  # type: ignore[no-untyped-call]
