"""Checks what torch's operators assert on a GPU before they run.

A failed assertion in a kernel takes the device from the whole process. The same operator on a CPU raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from perfguard._compat.torch_internals import OVERLOAD, schema_of
from perfguard._compat.torch_utils import DispatchMode, are_unfolded, is_fake


def refuse_asserted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of an operator (OpOverload) that asserts something about their values on a GPU: indices that
    are in range, targets that are classes, probabilities from 0 to 1.

    Raises:
        IndexError: an index is out of range.
        ValueError: another value would fail the operator's assertion.
    """
    checks = _CHECKS.get(func.overloadpacket.__name__.rstrip("_").removeprefix("_unsafe_"))
    if checks is None:
        return
    names = (argument.name for argument in schema_of(func).arguments)
    checks(func, {**dict(zip(names, args, strict=False)), **kwargs})


class _Checked(DispatchMode):
    """Checks the operators on tensors of a GPU."""

    supports_higher_order_operators = True  # Otherwise torch.cond and the like would raise.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and are_unfolded(types):
            return NotImplemented
        if isinstance(func, OVERLOAD.get()):
            refuse_asserted(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def asserted_on_the_host() -> AbstractContextManager[Any]:
    """Check the arguments of all operators while inside, if this process uses a GPU."""
    used = torch.cuda.is_initialized() or torch.xpu.is_initialized()  # type: ignore[no-untyped-call]
    return _Checked() if used else nullcontext()  # type: ignore[no-untyped-call]


def _within(func: Any, index: Any, least: int, size: int) -> None:
    if not isinstance(index, torch.Tensor) or index.dtype is torch.bool or _is_free(index):
        return
    low, high = (int(each) for each in index.aminmax())
    if low < least or high >= size:
        raise IndexError(f"{func}: index {low if low < least else high} is out of bounds for size {size}")


def _is_free(tensor: torch.Tensor) -> bool:
    """Whether no kernel reads the tensor, or it raises by itself."""
    return not tensor.numel() or tensor.is_cpu or tensor.is_meta or is_fake(type(tensor))


def _along(func: Any, named: Mapping[str, Any]) -> None:
    tensor = named["self"]
    size = tensor.shape[named["dim"]] if tensor.ndim else 1
    filled = func.overloadpacket.__name__.startswith("index_fill")
    _within(func, named["index"], -size if filled else 0, size)


def _rows(func: Any, named: Mapping[str, Any]) -> None:
    _within(func, named["indices"], 0, named["weight"].shape[0])


def _indexed(func: Any, named: Mapping[str, Any]) -> None:
    sizes = iter(named["self"].shape)
    for index in named["indices"]:
        masked = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        covered = [next(sizes, 1) for _ in range(index.ndim if masked else 1)]
        if index is not None and not masked:
            _within(func, index, -covered[0], covered[0])


def _taken(func: Any, named: Mapping[str, Any]) -> None:
    count = named["self"].numel()
    _within(func, named["index"], -count, count)


def _classes(func: Any, named: Mapping[str, Any]) -> None:
    scores, target = named["self"], named["target"]
    if not _is_free(target):
        kept = target.where(target != named["ignore_index"], 0)
        _within(func, kept, 0, scores.shape[min(scores.ndim - 1, 1)])


def _probabilities(func: Any, named: Mapping[str, Any]) -> None:
    """Of `bernoulli_` the tensor itself is the result."""
    weights = func.overloadpacket.__name__ == "multinomial"
    p = named["self"] if not schema_of(func).overload_name else named.get("p")
    if not isinstance(p, torch.Tensor) or _is_free(p):
        return
    known = (p >= 0) & p.isfinite() & ((p.sum(-1, keepdim=True) > 0) if weights else (p <= 1))
    if not bool(known.all()):
        raise ValueError(f"{func}: values are no probabilities")


def _asserted(func: Any, named: Mapping[str, Any]) -> None:
    if not _is_free(named["self"]) and not bool(named["self"].all()):
        raise ValueError(f"{func}: {named.get('assert_msg', 'the assertion fails')}")


def _checks() -> Iterator[tuple[str, Callable[[Any, Mapping[str, Any]], None]]]:
    along = "index_select gather scatter scatter_add scatter_reduce index_add index_copy index_fill"
    yield from ((name, _along) for name in along.split())
    yield from ((name, _rows) for name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"))
    yield from ((name, _indexed) for name in ("index", "index_put", "_index_put_impl"))
    yield from ((name, _taken) for name in ("take", "put"))
    yield from ((name, _classes) for name in ("nll_loss_forward", "nll_loss2d_forward"))
    yield from ((name, _probabilities) for name in ("multinomial", "binary_cross_entropy", "bernoulli"))
    yield "_assert_async", _asserted


_CHECKS = dict(_checks())
