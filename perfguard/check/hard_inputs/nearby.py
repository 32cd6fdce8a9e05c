"""The oracle on inputs close to the derived ones, whose results a correct kernel may also give.

If its results jump, the input is at a tie or an edge of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perfguard._compat.torch_internals import schema_of
from perfguard._compat.torch_utils import DispatchMode
from perfguard.check.numerics.fp8_codes import FP8_DTYPES
from perfguard.check.numerics.trial import Inputs, Trial
from perfguard.check.numerics.truth import Gradients, Reference
from perfguard.model.call import Call

FLUSHED = 2.0**-125  # twice the least normal float32; smaller values may count as zero
_HUGE = 2.0**60  # replaces infinity
_ROUNDINGS = 2.0**-22  # a few of float32's
_TIE, _TIE_OF_FLOAT32 = 2.0**-40, 2.0**-16  # small, but still visible after a softmax in the oracle's dtype

Tensors = list[torch.Tensor | None]
_Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # values and random signs, both float64


@dataclass(frozen=True)
class Nearby:
    """The oracle's tensors.

    Attributes:
        rounded: on inputs off by a few float32 roundings, or by amounts that a device flushes to zero.
        untied: on inputs changed so that equal values differ.
        bounded: with a huge number for infinity; None if no input is infinite.
        chosen: the reference's own tensors on the unchanged inputs, with the last of equal elements chosen.
    """

    rounded: Tensors
    untied: Tensors
    chosen: Tensors
    bounded: Tensors | None

    @property
    def both(self) -> tuple[Tensors, Tensors]:
        return self.rounded, self.untied


class _Changed(Inputs):
    """The inputs with changed floats, in float64."""

    def __init__(self, call: Call, change: _Change) -> None:
        super().__init__(call)
        generators = {t.device: torch.Generator(t.device).manual_seed(call.seed) for t in self.tensors}
        made: dict[int, torch.Tensor] = {}
        for leaf in self.tensors:
            if leaf.is_floating_point() and leaf.dtype not in FP8_DTYPES and leaf.itemsize > 1 and id(leaf) not in made:
                signs = torch.randint(0, 2, leaf.shape, generator=generators[leaf.device], device=leaf.device)
                values = change(leaf.detach().double(), signs.double() * 2 - 1)
                made[id(leaf)] = values.requires_grad_(leaf.requires_grad)
        self._leaves = [made.get(id(leaf), leaf) for leaf in self._leaves]


def nearby(call: Call, eager: Trial, upstream: Gradients) -> Nearby:
    """Run the oracle close to the inputs of `call`.

    Raises:
        MeasurementError: the reference raises on these inputs.
    """
    floats = [tensor for tensor in call_tensors(call) if tensor.dtype.is_floating_point and tensor.itemsize > 1]
    exact = bool(floats) and all(tensor.dtype is torch.float64 for tensor in floats)
    coded = any(tensor.dtype in FP8_DTYPES for tensor in eager.outputs)
    off = 2.0**-50 if exact else _ROUNDINGS
    tie = _TIE_OF_FLOAT32 if coded or call.oracle == "float32" else _TIE

    def run(change: _Change) -> Tensors:
        return Reference(call, _Changed(call, change)).oracle(eager, upstream)

    infinite = any(bool(tensor.isinf().any()) for tensor in floats)
    return Nearby(
        run(lambda values, signs: values * (1 + off * signs) + FLUSHED * signs),
        run(lambda values, signs: values + tie * signs * (1 + values.abs().nan_to_num(0.0, 0.0))),
        _choosing_otherwise(call, upstream),
        run(lambda values, _: values.clamp(-_HUGE, _HUGE)) if infinite else None,
    )


def _choosing_otherwise(call: Call, upstream: Gradients) -> Tensors:
    with LastOfEqual():
        return Reference(call, Inputs(call)).run(upstream).tensors()


def call_tensors(call: Call) -> list[torch.Tensor]:
    """All tensors among the inputs of `call`."""
    return Inputs(call).tensors


aten = torch.ops.aten


class LastOfEqual(DispatchMode):
    """Makes operators choose the last of equal elements instead of the first, by reversing their input."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _CHOOSING:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in schema_of(func).arguments]
        given = dict(zip(names, args, strict=False)) | dict(kwargs or {})
        tensor, dim = given.pop("self"), given.pop("dim", None if func in _OF_ALL else -1)
        if tensor.ndim == 0:
            return func(*args, **(kwargs or {}))
        if dim is None:
            found = tensor.numel() - 1 - func(tensor.flatten().flip(0), 0)
            return found.reshape((1,) * tensor.ndim) if given.get("keepdim") else found
        found = func(tensor.flip(dim), dim=dim, **given)
        last = tensor.shape[dim] - 1
        return last - found if isinstance(found, torch.Tensor) else (found[0], last - found[1])


_OF_ALL = (aten.argmax.default, aten.argmin.default)
_CHOOSING = frozenset(
    (
        *_OF_ALL,
        aten.topk.default,
        aten.sort.default,
        aten.sort.stable,
        aten.max.dim,
        aten.min.dim,
        aten.kthvalue.default,
    )
)
