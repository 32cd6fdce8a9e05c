"""Procedures to run a call: plainly, or as a derived call requires (`hard_inputs/called.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Gradients = Sequence[torch.Tensor | None]  # incoming: one for each output; None where an output needs none


class LeftOut(Exception):
    """An input is outside the call's domain; the message is the reason."""


@dataclass(frozen=True)
class Run:
    """One run of a function.

    Attributes:
        leaves: the tensors to differentiate by: arguments and parameters that require grad.
        upstream: incoming gradients; empty for the forward pass alone.
        wide: whether everything is a wide copy, as in the oracle.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: Sequence[torch.Tensor]
    upstream: Gradients
    seed: int
    wide: bool = False

    def __call__(self) -> Any:
        return self.fn(*self.args, **self.kwargs)


class Procedure:
    """A plain run: one call, one backward pass. Subclasses make it otherwise, for candidate and reference alike.

    Attributes:
        state_names: names of the state that is compared besides the results, as tensors.
        coarse: the dtype in which finer results are compared; None: their own.
        is_cast: whether operators inside the call choose their dtypes, as under autocast.
    """

    state_names: Sequence[str] = ()
    coarse: torch.dtype | None = None
    is_cast = False

    def may_return(self, dtype: torch.dtype, place: int) -> bool:
        """Whether an output of the candidate may have this dtype, although the reference's has another one."""
        return False

    def call(self, run: Run) -> Any:
        """The results of the call that is judged."""
        return run()

    def gradients(self, outputs: Sequence[torch.Tensor], run: Run) -> list[torch.Tensor | None]:
        """The gradients to judge, in the order of the leaves."""
        return [None if each is None else each.detach().clone() for each in differentiated(outputs, run)]

    def state(self, fn: Callable[..., Any]) -> list[torch.Tensor]:
        """The state after the run, in the order of its names."""
        return []

    def restore(self, fn: Callable[..., Any]) -> None:
        """Undo the run's changes of state other than its inputs."""


def differentiated(outputs: Sequence[torch.Tensor], run: Run, *, retain: bool = False) -> list[torch.Tensor | None]:
    """Gradients of the leaves; empty if the run is forward only. `retain`: the graph is used again."""
    pairs = [
        (output, gradient if gradient.dtype is output.dtype else gradient.to(output.dtype))
        for output, gradient in zip(outputs, run.upstream, strict=False)
        if gradient is not None and output.requires_grad
    ]
    if not pairs or not run.leaves:
        return [None] * len(run.leaves) if run.upstream else []
    roots, incoming = zip(*pairs, strict=True)
    return list(torch.autograd.grad(roots, list(run.leaves), incoming, allow_unused=True, retain_graph=retain))
