"""The reference run in other ways: in a wider dtype, as the oracle; and with the other order of equal elements.

A reference that calls `x.float()` or `.to(torch.bfloat16)` would also round inside the oracle. So every narrow dtype
that it requests is first replaced by the wide one. If that run fails (bit tricks, checks of dtypes, custom operators),
the reference runs unchanged on wide inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from perfguard._compat import torch_utils
from perfguard._compat.torch_internals import schema_of
from perfguard.check.memory import free_bytes
from perfguard.check.numerics.sums import FP8_DTYPES
from perfguard.model.errors import is_out_of_memory

Result = TypeVar("Result")

NARROW = (torch.bfloat16, torch.float16, torch.float32)
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
#: Share of the free memory that a float64 oracle may take.
MEMORY_SHARE = 0.25
#: The largest relative change of the values in a close run. In 16 bits it is an eighth of a rounding: less than eager's
#: own error, but more than the error of sums in float32 before an element is cut at 0. In float32 it is 16 roundings,
#: those of a long sum.
CLOSE: dict[torch.dtype, float] = {torch.bfloat16: 2.0**-12, torch.float16: 2.0**-15, torch.float32: 2.0**-20}
#: Number of copies of the inputs and outputs that the reference and the comparison hold at once.
COPIES = 3


class Widen(torch_utils.DispatchMode):
    """Makes operators that request one of `dtypes` return `wide`.

    A narrow float beside a wide one, such as a weight that the reference closes over, is widened: operators such as
    matrix products refuse to mix dtypes. A view of a wide tensor's bytes as one of `dtypes` returns the tensor itself.
    A view as integers of another size raises TypeError, since it refers to the bits of the narrow value.
    """

    def __init__(self, dtypes: Sequence[torch.dtype], wide: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes = frozenset(dtypes) - {wide}
        self.narrow = self.dtypes.intersection(NARROW)
        self.wide = wide

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.ops.aten.view.dtype and args[0].dtype is self.wide:
            if args[1] in self.dtypes:
                return torch.ops.aten.alias.default(args[0])
            if args[1].itemsize != self.wide.itemsize:
                raise TypeError(f"{args[1]} bits of a tensor that is {self.wide} here")
        if named.get("dtype") in self.dtypes:
            named["dtype"] = self.wide
        dtypes = {each.dtype for each in torch_utils.tree_leaves(args) if isinstance(each, torch.Tensor)}
        if self.wide in dtypes and not self.narrow.isdisjoint(dtypes) and not schema_of(func).is_mutable:
            args = torch_utils.tree_map(self._widened, args)
        return func(*args, **named)

    def _widened(self, leaf: Any) -> Any:
        return leaf.to(self.wide) if isinstance(leaf, torch.Tensor) and leaf.dtype in self.narrow else leaf


@contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products of float32 without shortcuts such as TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


_seeds: ContextVar[Iterator[int] | None] = ContextVar("_seeds", default=None)


@contextmanager
def close_inputs(draw: int) -> Iterator[None]:
    """While inside, `widened` changes each value at random by up to CLOSE; `draw` chooses the random numbers."""
    token = _seeds.set(itertools.count(draw << 16))
    try:
        yield
    finally:
        _seeds.reset(token)


def widened(tensor: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """A floating or complex tensor in `wide`, strides kept. 8-bit floats (codes) and integers are unchanged."""
    if tensor.dtype in FP8_DTYPES or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    values = tensor.to(COMPLEX[wide] if tensor.is_complex() else wide)
    seeds = _seeds.get()
    if seeds is None or tensor.dtype not in CLOSE:
        return values
    generator = torch.Generator(values.device).manual_seed(next(seeds))
    return values * (1 + CLOSE[tensor.dtype] * torch.empty_like(values).uniform_(-1, 1, generator=generator))


def run_wide(run: Callable[[], Result], wide: torch.dtype) -> Result:
    """`run` with every requested narrow float widened, or unchanged if the widened run raises.

    Raises:
        Exception: raised by the unchanged `run`.
        OutOfMemoryError: the widened run had too little memory.
    """
    with full_precision():
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(wide)  # for `torch.zeros(n)`, which names no dtype to replace
            with Widen(NARROW, wide):
                return run()
        except Exception as error:
            if is_out_of_memory(error):
                raise  # the unchanged run would run out of memory, too
            del error  # with the tensors in its frames
        finally:
            torch.set_default_dtype(default)
        return run()


Run = Callable[[], list[torch.Tensor]]


def unrounded_codes(run: Run, coded: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The reference's values before its casts to 8-bit floats.

    Args:
        run: the reference; returns its tensors.
        coded: the same tensors from a plain run.

    Returns:
        For each tensor float32 values of the same shape, or None if it is no 8-bit float or the values are not
        available. Bytes are widened too, since references keep codes in uint8 buffers.
    """
    with full_precision():
        found = _without_casts(run, coded, (*FP8_DTYPES, torch.uint8), torch.float32)
    return [
        value if value is not None and code.dtype in FP8_DTYPES and value.dtype is torch.float32 else None
        for value, code in zip(found, coded, strict=True)
    ]


def in_float32(run: Run, coded: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The values and the scales of a reference without any casts: float32 throughout.

    Args:
        run: the reference on inputs in float32.
        coded: the same tensors from a plain run.
    """
    with full_precision():
        found = _without_casts(run, coded, (*NARROW, *FP8_DTYPES, torch.uint8), torch.float32)
    return [None] * len(coded) if any(value is None for value in found) else found


def before_integers(run: Run, made: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The reference's values before its casts to integers, as `unrounded_codes`; None where there is no such cast."""
    integers = {each.dtype for each in made if not each.is_floating_point() and each.dtype is not torch.bool}
    return [
        value if value is not None and each.dtype in integers and value.is_floating_point() else None
        for value, each in zip(_without_casts(run, made, (*integers,), torch.float64), made, strict=True)
    ]


def _without_casts(
    run: Run, made: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype], wide: torch.dtype
) -> list[torch.Tensor | None]:
    """The tensors of a run in which requests for `dtypes` are for `wide`; None for each that has another shape than in
    `made`, of a plain run, and for all if the run raises or returns another number of them."""
    try:
        with torch.no_grad(), Widen(dtypes, wide):
            values = run()
    except Exception:
        return [None] * len(made)
    if len(values) != len(made):
        return [None] * len(made)
    return [value if value.shape == each.shape else None for value, each in zip(values, made, strict=True)]


def fits_in_float64(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a few float64 copies of the floating tensors among `tensors` fit in a quarter of free memory."""
    wide = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    if not wide:
        return True
    needed = COPIES * 8 * sum(tensor.numel() for tensor in wide)
    return needed <= MEMORY_SHARE * free_bytes(wide[0].device)


# -- the order of equal elements ---------------------------------------------------------------------------------------

# Which of equal scores `topk` or `argmax` chooses is undefined: it differs between devices, sizes and kernels. The
# reference says only what both orders agree on.
_aten = torch.ops.aten
_OF_ALL = (_aten.argmax.default, _aten.argmin.default)
_ORDERING = (_aten.topk.default, _aten.sort.default, _aten.sort.stable)
_CHOOSING = frozenset((*_OF_ALL, *_ORDERING, _aten.max.dim, _aten.min.dim, _aten.kthvalue.default))


class OrderOfEqual(torch_utils.DispatchMode):
    """Makes operators choose the first, or the last, of equal elements. A sort that is asked to be stable stays so."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last = last

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _CHOOSING:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in schema_of(func).arguments]
        given = dict(zip(names, args, strict=False)) | dict(kwargs or {})
        tensor, dim = given.pop("self"), given.pop("dim", None if func in _OF_ALL else -1)
        if tensor.ndim == 0 or given.pop("stable", False):
            return func(*args, **(kwargs or {}))
        if func in _ORDERING:
            return self._ordered(tensor, dim, **given)
        if not self.last:
            return func(*args, **(kwargs or {}))
        if dim is None:
            found = tensor.numel() - 1 - func(tensor.flatten().flip(0), 0)
            return found.reshape((1,) * tensor.ndim) if given.get("keepdim") else found
        found = func(tensor.flip(dim), dim=dim, **given)
        end = tensor.shape[dim] - 1
        return end - found if isinstance(found, torch.Tensor) else (found[0], end - found[1])

    def _ordered(
        self,
        tensor: torch.Tensor,
        dim: int,
        k: int | None = None,
        *,
        descending: bool = False,
        largest: bool = True,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result of `sort`, or of `topk` of `k` elements."""
        downwards = descending if k is None else largest
        values, indices = _aten.sort.stable(
            tensor.flip(dim) if self.last else tensor, stable=True, dim=dim, descending=downwards
        )
        if self.last:
            indices = tensor.shape[dim] - 1 - indices
        count = tensor.shape[dim] if k is None else k
        return values.narrow(dim, 0, count).contiguous(), indices.narrow(dim, 0, count).contiguous()
