"""One training step of a case of several ranks, of which one pass is read.

FSDP2 gathers and frees parameters by hooks of a whole step: after a forward pass without a backward one the root's
parameters stay gathered, and the next forward pass would exchange less. A backward pass reduces gradients only where
they accumulate, so `torch.autograd.grad` would show none of it. Each run is therefore one step of both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfguard.model.call import Call, Outputs
from perfguard.model.records import Pass
from perfguard.tensors.graph import tree_tensors

if TYPE_CHECKING:
    import torch

Incoming = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]


@dataclass(frozen=True)
class Step:
    """A step of `call`, read in one of its passes. Calling it takes the step and returns that pass's outputs.

    Forward: the outputs. Backward: the gradients of inputs and parameters, None where there is none. Of a DTensor it is
    the part of this rank. Incoming gradients are ones: no exchange depends on their values.
    """

    call: Call
    direction: Pass = "forward"

    def __call__(self) -> Outputs:
        results = self.run(self.prepare())
        return local(self.finish(results))

    def within(self, around: AbstractContextManager[Any]) -> Outputs:
        """The same, with `around` held during the pass that is read."""
        prepared = self.prepare()
        with around:
            results = self.run(prepared)
        return local(self.finish(results))

    def has_backward(self) -> bool:
        """Whether the outputs depend on something that requires a gradient. It takes a step."""
        started = self.run(self.prepare())
        found = any(output.requires_grad for output in tree_tensors(started.outputs))
        self.finish(started)
        return found

    def prepare(self) -> Started:
        """All that precedes the pass: inputs as fresh leaves, and before a backward pass the forward one."""
        started = _start(self.call)
        return started if self.direction == "forward" else started.forward()

    def run(self, started: Started) -> Started:
        """The pass."""
        return started.forward() if self.direction == "forward" else started.backward()

    def finish(self, started: Started) -> Outputs:
        """The pass's outputs; after a forward pass the backward one is taken, so that the module is as before."""
        if self.direction == "forward":
            outputs = _detached(started.outputs)
            started.backward()
            return outputs
        return started.gradients


@dataclass
class Started:
    """A step under way."""

    call: Call
    leaves: list[torch.Tensor]
    outputs: Any = None
    gradients: tuple[torch.Tensor | None, ...] = ()

    def forward(self) -> Started:
        self.outputs = self.call.run()
        return self

    def backward(self, incoming: Incoming | None = None) -> Started:
        """Gradients of the leaves; those that the leaves held before are put back.

        Args:
            incoming: the gradients of outputs that require one; by default ones.
        """
        import torch

        outputs = [each for each in tree_tensors(self.outputs) if each.requires_grad]
        self.outputs = None
        before = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        if outputs:
            torch.autograd.backward(outputs, incoming(outputs) if incoming else [*map(torch.ones_like, outputs)])
        self.gradients = tuple(leaf.grad for leaf in self.leaves)
        for leaf, gradient in zip(self.leaves, before, strict=True):
            leaf.grad = gradient
        return self


def _start(call: Call) -> Started:
    import torch

    from perfguard._compat import torch_utils

    leaves: list[torch.Tensor] = []

    def fresh(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = value.detach().requires_grad_()
            leaves.append(value)
        return value

    args, kwargs = torch_utils.tree_map(fresh, (call.args, dict(call.kwargs)))
    if isinstance(call.fn, torch.nn.Module):
        leaves += [parameter for parameter in call.fn.parameters() if parameter.requires_grad]
    return Started(replace(call, args=args, kwargs=kwargs), leaves)


def walk(call: Call) -> list[Callable[[], object]]:
    """A step on the call's inputs, and one on each entry of its walk."""
    return [Step(call), *(_on(call, inputs) for inputs in call.walk)]


def _on(call: Call, inputs: tuple[Any, ...] | Callable[[], tuple[Any, ...]]) -> Callable[[], object]:
    return lambda: Step(replace(call, args=inputs() if callable(inputs) else inputs))()


def local(tree: Outputs) -> Outputs:
    """`tree` with the part of this rank for every DTensor, and with the tensor itself for what is still on its way."""
    import torch

    from perfguard._compat import torch_utils

    def here(value: Any) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        part: Any = value.to_local() if hasattr(value, "to_local") else value
        return part.wait() if hasattr(part, "trigger_wait") else part

    return torch_utils.tree_map(here, tree)


def _detached(tree: Outputs) -> Outputs:
    import torch

    from perfguard._compat import torch_utils

    return torch_utils.tree_map(lambda each: each.detach() if isinstance(each, torch.Tensor) else each, tree)
