"""Checks a module that is spread over ranks against the whole module on each rank (docs/numerics.md, "Several ranks").

The loss of a training step is the mean over ranks. So the oracle of a parameter's gradient is the mean over ranks of
the reference's gradients, each for its rank's inputs. Ranks with the same inputs (tensor parallelism) occur equally
often, so this is also the mean over the different inputs. Outputs and gradients of inputs are compared on their own
rank. DTensors of the candidate are gathered.

If a gradient is off by a scale, for example divided by the wrong number of ranks, the problem names its ratio to the
oracle. Neither losses nor an optimiser like Adam show such a fault.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from perfguard._compat import torch_utils
from perfguard.check.checked import Checked
from perfguard.check.numerics.trial import Gradients, Inputs
from perfguard.check.numerics.truth import Reference, Truth, with_hint
from perfguard.model.call import Call
from perfguard.model.errors import UsageError
from perfguard.model.mesh import Mesh, data_place
from perfguard.model.records import Accuracy
from perfguard.tensors.autograd_graph import tree_tensors
from perfguard.tensors.seeding import seed_all
from perfguard.tensors.step import Step

_FACTOR = 0.5  # Weights are multiplied by this in place, which is exact in every dtype.
_CLOSE = 0.01  # A ratio this close to a number of ranks is explained by it.


def check_sharded(call: Call) -> Checked:
    """Compare outputs and gradients of one step with those of the reference, and again with other weights.

    In the second step the weights are halved in place, as an optimiser changes them. If something has kept a gathered
    copy, this copy is then stale. On torch's fake backend nothing is compared, because its exchanges carry no data.

    Args:
        call: `fn` is the module on this rank, `reference` the whole module, with the same parameters in the same order.
            Inputs are plain tensors of this rank.

    Raises:
        UsageError: the call differs from this, or ranks that must have different inputs have the same.
        Exception: raised by the candidate or the reference.
    """
    if not call.ranks.has_data:
        return Checked([], [] if Step(call).has_backward() else None, [], Inputs(call).describe())
    if not isinstance(call.fn, torch.nn.Module) or not isinstance(call.reference, torch.nn.Module):
        raise UsageError("a case of several ranks guards a module: pass the sharded one, and reference=the whole one")
    inputs = Inputs(call)
    for name, value in zip(inputs.names, torch_utils.tree_leaves((call.args, dict(call.kwargs))), strict=True):
        if hasattr(value, "placements"):
            raise UsageError(f"{name}: is a DTensor; give each rank its own inputs as plain tensors")
    place = data_place(dist.get_rank(), call.mesh)
    _refuse_same_inputs(inputs, call.mesh)
    # Ranks with the same inputs draw the same random numbers and incoming gradients.
    call = replace(call, seed=call.seed + int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:3], "big"))
    return _Sharded(call, inputs).run()


def _refuse_same_inputs(inputs: Inputs, mesh: Mesh) -> None:
    """Refuse equal batches, which would hide a wrong mean: a mean of equal gradients is right over any ranks."""
    digest = hashlib.sha256()
    for tensor in inputs.tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    has_elements = any(tensor.numel() for tensor in inputs.tensors)
    digests = _all_ranks(digest.hexdigest() if has_elements else "")
    for (rank, own), (other, theirs) in itertools.combinations(enumerate(digests), 2):
        if own and own == theirs and data_place(rank, mesh) != data_place(other, mesh):
            raise UsageError(
                f"inputs: ranks {rank} and {other} have the same ones, which would hide a mean over the wrong ranks; "
                "draw each rank's inputs by its place in the mesh (only dimensions named …tp share inputs)"
            )


class _Sharded:
    """The checks of one call."""

    def __init__(self, call: Call, inputs: Inputs) -> None:
        self.call, self.inputs = call, inputs
        self.reference = Reference(call, inputs)
        self.arguments = len(inputs.leaf_names) - len(inputs.parameters)  # Their gradients come first.

    def run(self) -> Checked:
        accuracies, first = self._compare()
        problems = []
        if self.call.on_any_rank(any(accuracy.problem for accuracy in accuracies)):
            problems = self._other_weights()
        else:
            modules = [each for each in (self.call.fn, self.call.reference) if isinstance(each, torch.nn.Module)]
            with _halved(modules):
                again, _ = self._compare()
            problems = [each.problem for each in again if each.problem]
            if self.call.on_any_rank(bool(problems)):
                reason = self._reason_after_change()
                problems = [f"{problem}; {reason}" for problem in problems]
        backward = accuracies[first:] if len(accuracies) > first else None
        return Checked(accuracies[:first], backward, problems, self.inputs.describe(), self.reference.notes)

    def _reason_after_change(self) -> str:
        """The reason why a right result became wrong after the weights changed in place. They have been restored."""
        self._compare()  # After this call, a copy that is one call late is right again.
        later, _ = self._compare()
        if self.call.on_any_rank(any(accuracy.problem for accuracy in later)):
            return "it was right in the first call, and is wrong in a later one with the very same weights, too"
        return "this after the weights changed in place: something keeps old ones"

    def _other_weights(self) -> list[str]:
        """The first parameter whose values differ from the reference's, which may cause all other problems."""
        candidate, reference = self.call.fn, self.call.reference
        assert isinstance(candidate, torch.nn.Module)
        assert isinstance(reference, torch.nn.Module)
        others = []  # All parameters are gathered, because ranks may find different ones.
        for (name, given), wanted in zip(candidate.named_parameters(), reference.parameters(), strict=False):
            own, whole = _whole(given.detach()), wanted.detach()
            if own.shape == whole.shape and (own.double() - whole.double()).norm() > _CLOSE * whole.double().norm():
                others.append(name)
        problem = "begins with other values than the reference's; copy.deepcopy the whole module before it is sharded"
        return [f"parameter {name}: {problem}" for name in others[:1]]

    def _compare(self) -> tuple[list[Accuracy], int]:
        """The accuracies of outputs, then of gradients; and the position of the first gradient."""
        eager, upstream = self.reference.eager()
        truth = self.reference.truth(eager, upstream)
        if upstream:
            own = truth.first_gradient + self.arguments
            truth.eager[own:] = _mean(truth.eager[own:])
            truth.oracle[own:] = _mean(truth.oracle[own:])
        outputs, gradients = self._step(upstream)
        if len(outputs) != truth.first_gradient:
            problem = f"outputs: the candidate returns {len(outputs)} tensors; the reference {truth.first_gradient}"
            return [Accuracy(output="outputs", dtype="none", problem=problem)], 1
        results = [*outputs, *(gradients if upstream else ())]
        return [self._judged(truth, position, tensor) for position, tensor in enumerate(results)], truth.first_gradient

    def _step(self, upstream: Gradients) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """The gathered outputs and gradients of one step of the candidate."""
        incoming = [gradient for gradient in upstream if gradient is not None]
        seed_all(self.call.seed)
        started = Step(self.call, "backward").prepare()
        outputs = [_whole(each.detach()) for each in tree_tensors(started.outputs)]
        started.backward(lambda given: [_like(each, output) for each, output in zip(incoming, given, strict=True)])
        return outputs, [None if each is None else _whole(each) for each in started.gradients]

    def _judged(self, truth: Truth, position: int, candidate: torch.Tensor | None) -> Accuracy:
        accuracy = truth.judge(position, candidate)
        oracle = truth.oracle[position] if truth.oracle[position] is not None else truth.eager[position]
        if not accuracy.problem or position < truth.first_gradient or candidate is None or oracle is None:
            return accuracy
        return with_hint(accuracy, _ratio(candidate, oracle, self.call.mesh))


def _ratio(gradient: torch.Tensor, oracle: torch.Tensor, mesh: Mesh) -> str:
    """`2 times the oracle's, as many as ranks of ep: …` for a gradient off by a scale; empty for others."""
    o = oracle.double()
    square = float((o * o).sum())
    if gradient.shape != oracle.shape:
        return "a part of a parameter must be a DTensor, which can be gathered"
    if not square:
        return ""
    g = gradient.double()
    ratio = float((g * o).sum()) / square
    if float((g - ratio * o).square().sum()) > _CLOSE * square * ratio * ratio:
        return ""
    if not 0 < ratio < math.inf or abs(ratio - 1) < _CLOSE:  # This includes NaN.
        return ""
    named = "+".join(next(_dimensions_with(max(ratio, 1 / ratio), mesh), ()))
    ranks = f", as many as ranks of {named}" if named else ""
    times = f"{ratio:.4g}" if ratio >= 1 else f"1/{1 / ratio:.4g}"
    return f"{times} times the oracle's{ranks}: divide by the ranks that the loss is a mean over"


def _dimensions_with(ranks: float, mesh: Mesh) -> Iterator[tuple[str, ...]]:
    """The sets of dimensions that together have so many ranks."""
    for count in range(1, len(mesh) + 1):
        for names in itertools.combinations(mesh, count):
            size = math.prod(mesh[name] for name in names)
            if size > 1 and abs(ranks / size - 1) < _CLOSE:
                yield names


@contextmanager
def _halved(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Halve all floating-point parameters in place while inside."""
    parameters = [each for module in modules for each in module.parameters() if each.is_floating_point()]
    with torch.no_grad():
        kept = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.mul_(_FACTOR)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


# -- ranks -------------------------------------------------------------------------------------------------------------


def _all_ranks(value: Any) -> list[Any]:
    """The values of all ranks, by rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _mean(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The mean over ranks of each gradient, in its dtype. A gradient that a rank lacks counts as zero; one that all
    ranks lack stays None."""
    by_rank = _all_ranks([None if each is None else (each.shape, each.dtype, each.device.type) for each in gradients])
    means: list[torch.Tensor | None] = []
    for gradient, forms in zip(gradients, zip(*by_rank, strict=True), strict=True):
        form = next(filter(None, forms), None)
        if form is None:
            means.append(None)
            continue
        shape, dtype, device = form
        total = torch.zeros(shape, dtype=torch.float64, device=device)
        if gradient is not None:
            total += gradient
        dist.all_reduce(total)
        means.append((total / dist.get_world_size()).to(dtype))
    return means


def _whole(tensor: Any) -> torch.Tensor:
    """The tensor, gathered from its ranks if it is a DTensor."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.wait() if hasattr(whole, "trigger_wait") else whole  # type: ignore[no-any-return]


def _like(gradient: torch.Tensor, output: Any) -> torch.Tensor:
    """The part of an incoming gradient that belongs to `output`, which may be a DTensor."""
    gradient = gradient.to(output.dtype)
    if not hasattr(output, "placements"):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(gradient, output.device_mesh, output.placements, src_data_rank=None)
