"""The oracle on inputs close to the derived ones. A correct kernel may return its results, too.

If its results jump, the input is at a tie or an edge of the reference. Inputs that differ by a rounding do not reveal
every tie: a sigmoid or softmax that has reached 1 stays there. So the reference also runs with ties broken both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard._compat.torch_internals import schema_of
from perfguard._compat.torch_utils import DispatchMode
from perfguard.check.hard_inputs.derivation import with_tensors
from perfguard.check.hard_inputs.values import takes_values
from perfguard.check.numerics.sums import FP8_DTYPES
from perfguard.check.numerics.trial import Gradients, Inputs, Trial
from perfguard.check.numerics.truth import Reference
from perfguard.model.call import Call

FLUSHED = 2.0**-125  # twice the least normal float32; smaller values may count as zero
_HUGE = 2.0**60  # replaces infinity
_NUMBERS = (0.0, 2.0**10, -(2.0**10))  # replace NaN
_ROUNDINGS = 2.0**-22  # a few of float32's
_TIE, _TIE_OF_FLOAT32 = 2.0**-40, 2.0**-16  # small, but still visible after a softmax in the oracle's dtype

_DRAWS = 3  # Few elements have a cancelling term that none of the draws changes.
#: Operators that return values which they were given: comparisons with these must stay true.
_CHOOSING = {
    *("amax", "amin", "aminmax", "clamp", "clamp_max", "clamp_min", "clone", "max", "maximum", "min", "minimum"),
    *("_to_copy", "sort", "topk", "where"),
}

Tensors = list[torch.Tensor | None]
_Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # values and random signs, both float64


@dataclass(frozen=True)
class Nearby:
    """The oracle's tensors.

    Attributes:
        rounded: on inputs off by a few float32 roundings, or by amounts that a device flushes to zero.
        untied: on inputs changed so that equal values differ.
        chosen: the reference's own tensors on the unchanged inputs, with the first and the last of equal elements
            chosen.
        bounded: with a huge number for infinity; None if no input is infinite.
        masked: with a number for NaN, where that does not matter, and NaN where it does; None if no input is NaN.
        numbers: with each of some numbers for NaN; empty if no input is NaN.
    """

    rounded: Tensors
    untied: Tensors
    chosen: list[Tensors]
    bounded: Tensors | None
    masked: Tensors | None
    numbers: list[Tensors]

    def numbered(self, position: int) -> list[torch.Tensor | None]:
        return [tensors[position] for tensors in self.numbers]


def nearby(call: Call, eager: Trial, upstream: Gradients) -> Nearby:
    """Run the oracle close to the inputs of `call`.

    Raises:
        MeasurementError: the reference raises on these inputs.
    """
    inputs = Inputs(call)
    floats = [tensor for tensor in inputs.tensors if tensor.dtype.is_floating_point and tensor.itemsize > 1]
    exact = bool(floats) and all(tensor.dtype is torch.float64 for tensor in floats)
    coded = any(tensor.dtype in FP8_DTYPES for tensor in eager.outputs)
    off = 2.0**-50 if exact else _ROUNDINGS
    tie = _TIE_OF_FLOAT32 if coded else _TIE

    def run(change: _Change) -> Tensors:
        changed = _changed(call, change)
        return Reference(changed, Inputs(changed)).oracle(eager, upstream)

    def round_(values: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        return values * (1 + off * signs) + FLUSHED * signs

    def untie(values: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        return values + tie * signs * (1 + values.abs().nan_to_num(0.0, 0.0))

    infinite = any(bool(tensor.isinf().any()) for tensor in floats)
    rounded, untied = run(round_), run(untie)
    if _nan_count(rounded) > _nan_count(eager.tensors()):  # For example, a probability fell below 0.
        rounded, untied = run(_upwards(round_)), run(_upwards(untie))
    chosen = Reference(call, inputs).ordered(upstream)
    bounded = run(lambda values, _: values.clamp(-_HUGE, _HUGE)) if infinite else None
    masked, numbers = None, []
    if any(bool(tensor.isnan().any()) for tensor in floats):
        numbers = [run(partial(_with_number, number)) for number in _NUMBERS]
        masked = [_agreed(found) for found in zip(*numbers, strict=True)]
    return Nearby(rounded, untied, chosen, bounded, masked, numbers)


def roundings(call: Call, eager: Trial, upstream: Gradients, by: float) -> list[Tensors]:
    """The oracle with each operator's result off by a rounding, _DRAWS times: residues of cancelled terms differ."""
    found = []
    for draw in range(_DRAWS):
        with _Rounded(by, draw):
            found.append(Reference(call, Inputs(call)).oracle(eager, upstream))
    return found


class _Rounded(DispatchMode):
    """Changes results of operators by up to the share `by`. Views, and values chosen among others, are unchanged."""

    def __init__(self, by: float, draw: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by, self.draw = by, draw
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _CHOOSING or any(each.alias_info for each in schema_of(func).returns):
            return result
        off = torch_utils.tree_map(self._off, result)
        if (size := _terms(func.overloadpacket.__name__, args, result)) is not None:
            off = off + self._off(size) - size
        return off

    def _off(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not takes_values(value):
            return value
        if value.device not in self.generators:
            self.generators[value.device] = torch.Generator(value.device).manual_seed(self.draw)
        generator = self.generators[value.device]
        signs = torch.randint(0, 2, value.shape, generator=generator, device=value.device) * 2 - 1
        return value * (1 + self.by * signs.to(value.dtype))


def _terms(name: str, args: Sequence[Any], result: Any) -> torch.Tensor | None:
    """The size of what a softmax subtracts before it returns, whose roundings its result does not show: a kernel that
    keeps the logarithm of the sum has weights that are off by a rounding of a score, and the gradient of a weight that
    has reached 1 is exactly 0 only if its terms are summed as eager sums them."""
    if name not in ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"):
        return None
    values = args[0].masked_fill(~args[0].isfinite(), 0)
    largest = values.abs().amax(args[2 if "backward" in name else 1], keepdim=True)
    weights = args[1] if "backward" in name else result
    size: torch.Tensor = largest.expand_as(result) if "log" in name else largest * weights
    return size


def _with_number(number: float, values: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.where(values.isnan(), number, values)


def _agreed(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The first tensor, with NaN where the others differ from it."""
    first, *others = tensors
    if first is None or not takes_values(first) or any(each is None or each.shape != first.shape for each in others):
        return None
    alike = torch.stack([each == first for each in others if each is not None]).all(0)
    return torch.where(alike, first, float("nan"))


def _upwards(change: _Change) -> _Change:
    """The change, with no zero made negative."""
    return lambda values, signs: change(values, torch.where(values == 0, signs.clamp(min=0), signs))


def _changed(call: Call, change: _Change) -> Call:
    """The call on changed floats, in float64."""
    generators: dict[torch.device, torch.Generator] = {}

    def made(_: int, leaf: torch.Tensor) -> torch.Tensor | None:
        if not takes_values(leaf):
            return None
        if leaf.device not in generators:
            generators[leaf.device] = torch.Generator(leaf.device).manual_seed(call.seed)
        signs = torch.randint(0, 2, leaf.shape, generator=generators[leaf.device], device=leaf.device)
        values = change(leaf.detach().double(), signs.double() * 2 - 1)
        return values.requires_grad_(leaf.requires_grad)

    return with_tensors(call, made)


def _nan_count(tensors: Tensors) -> int:
    return sum(int(tensor.isnan().sum()) for tensor in tensors if tensor is not None and takes_values(tensor))
