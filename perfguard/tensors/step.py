"""One training step of a case of several ranks. One of its passes is read.

FSDP2 gathers and frees parameters by hooks of a whole step. After a forward pass without a backward pass, the root's
parameters stay gathered, and the next forward pass would exchange less. A backward pass reduces gradients only as they
accumulate, so `torch.autograd.grad` would show no reductions. Therefore each run is a step of both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfguard.model.call import Call, Outputs
from perfguard.model.records import Pass
from perfguard.tensors.autograd_graph import tree_tensors

if TYPE_CHECKING:
    import torch

Incoming = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]


@dataclass(frozen=True)
class Step:
    """A step of `call`, of which one pass is read. Calling it runs the step and returns the outputs of that pass.

    The outputs of a backward pass are the gradients of inputs and parameters, or None without one. A DTensor is
    replaced by the part of this rank. Incoming gradients are ones, because no exchange depends on their values.
    """

    call: Call
    direction: Pass = "forward"

    def __call__(self) -> Outputs:
        return self.within(nullcontext())

    def within(self, around: AbstractContextManager[Any]) -> Outputs:
        """Run the step, and hold `around` during the pass that is read; returns the outputs of that pass."""
        prepared = self.prepare()
        with around:
            results = self.run(prepared)
        return local(self.finish(results))

    def has_backward(self) -> bool:
        """Whether the outputs depend on a tensor that requires a gradient. This runs a step."""
        started = self.run(self.prepare())
        requires_grad = any(output.requires_grad for output in tree_tensors(started.outputs))
        self.finish(started)
        return requires_grad

    def prepare(self) -> Started:
        """Make the inputs fresh leaves, and before a backward pass run the forward pass."""
        import torch

        call, leaves = on_fresh_leaves(self.call)
        if isinstance(call.fn, torch.nn.Module):
            leaves += [parameter for parameter in call.fn.parameters() if parameter.requires_grad]
        started = Started(call, leaves)
        return started if self.direction == "forward" else started.forward()

    def run(self, started: Started) -> Started:
        """Run the pass that is read."""
        return started.forward() if self.direction == "forward" else started.backward()

    def finish(self, started: Started) -> Outputs:
        """Complete the step, so that the module is as before; returns the outputs of the pass that is read."""
        if self.direction == "forward":
            outputs = _detached(started.outputs)
            started.backward()
            return outputs
        return started.gradients


@dataclass
class Started:
    """A step that has begun."""

    call: Call
    leaves: list[torch.Tensor]
    outputs: Any = None
    gradients: tuple[torch.Tensor | None, ...] = ()

    def forward(self) -> Started:
        self.outputs = self.call.run()
        return self

    def backward(self, incoming: Incoming | None = None) -> Started:
        """Compute the gradients of the leaves, and restore those that the leaves held before. `incoming` returns the
        gradients of the outputs that require one; by default they are ones."""
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


def on_fresh_leaves(call: Call) -> tuple[Call, list[torch.Tensor]]:
    """The call on fresh leaves in place of the inputs that require gradients, and these leaves in order."""
    import torch

    from perfguard._compat import torch_utils

    leaves: list[torch.Tensor] = []

    def fresh(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = value.detach().requires_grad_()
            leaves.append(value)
        return value

    args, kwargs = torch_utils.tree_map(fresh, (call.args, dict(call.kwargs)))
    return replace(call, args=args, kwargs=kwargs), leaves


def walk(call: Call) -> list[Callable[[], object]]:
    """A step on the call's inputs, and one on each entry of its walk."""

    def on(inputs: tuple[Any, ...] | Callable[[], tuple[Any, ...]]) -> Callable[[], object]:
        return lambda: Step(replace(call, args=inputs() if callable(inputs) else inputs))()

    return [Step(call), *map(on, call.walk)]


def local(tree: Outputs) -> Outputs:
    """`tree` with this rank's part in place of every DTensor. Results of pending exchanges are waited for."""
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

    return torch_utils.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tree)
