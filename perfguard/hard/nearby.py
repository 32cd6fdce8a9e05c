"""The oracle on inputs close to the derived ones: what it says there is what a correct kernel may say here.

An input that is a tie or an edge of the reference shows by results that jump.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfguard.call import Call
from perfguard.hard.ties import LastOfEqual
from perfguard.numerics.codes import FP8_DTYPES
from perfguard.numerics.trial import Inputs, Trial
from perfguard.numerics.truth import Gradients, Reference

FLUSHED = 2.0**-125  # twice the least normal float32: what is below may count as zero
_HUGE = 2.0**60  # stands for infinity
_ROUNDINGS = 2.0**-22  # a few of float32's
_TIE, _TIE_OF_FLOAT32 = 2.0**-40, 2.0**-16  # small, and still seen behind a softmax in the oracle's dtype

Tensors = list[torch.Tensor | None]
_Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # values and random signs, both float64


@dataclass(frozen=True)
class Nearby:
    """The oracle's tensors.

    Attributes:
        rounded: on inputs off by a few float32 roundings, or by what a device flushes to zero.
        untied: on inputs that differ where they were equal.
        bounded: with a huge number for infinity; None where there is none among the inputs.
        chosen: the reference's own on the inputs as they are, with the last of equal elements chosen.
    """

    rounded: Tensors
    untied: Tensors
    chosen: Tensors
    bounded: Tensors | None

    @property
    def both(self) -> tuple[Tensors, Tensors]:
        return self.rounded, self.untied


class _Changed(Inputs):
    """The inputs with other values of their floats, in float64."""

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
        MeasurementError: the reference raises there.
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
    """All tensors among the inputs."""
    return Inputs(call).tensors
