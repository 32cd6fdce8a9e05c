"""The memory-saving operators under guard, forward and backward: one test an operator, one case a shape.

On a GPU the shapes of the contract are checked and timed. On a CPU moderate ones run and are timed through the eager
path, and small ones run through the interpreter, which is never timed.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import operators
from kernels.operators import GroupedLinear, WeightGradStore, reference, scatter, shapes
from kernels.operators.shapes import GroupedRows, LogitsShape, MovedShape, ProjectedShape, RowsShape
from perfguard import Hard, Work, ids, offsets
from tests.kernels.operator_work import (
    bias_work,
    cross_entropy_work,
    gate_work,
    gather_work,
    linear_cross_entropy_work,
    scatter_work,
)
from tests.kernels.operators import TWO_ROUNDINGS
from tests.kernels.paths import Candidates, cases, other_rows

pytestmark = pytest.mark.usefixtures("on_path")


def _cases(name: str) -> pytest.MarkDecorator:
    """The shapes of an operator."""
    return cases(getattr(shapes, name), getattr(shapes, f"{name}_CPU"), getattr(shapes, f"{name}_SMALL", ()))


@_cases("SILU_MUL")
def test_silu_mul(perfguard: Any, candidates: Candidates, shape: RowsShape, path: str) -> None:
    inputs = shape.pair(perfguard.device)
    perfguard(
        operators.silu_mul,
        *inputs,
        reference=reference.silu_mul,
        work=gate_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.silu_mul, *inputs),
        walk=other_rows(shape, lambda s: s.pair(perfguard.device)),
    )


@_cases("CLAMPED_SWIGLU")
def test_clamped_swiglu(perfguard: Any, candidates: Candidates, shape: RowsShape, path: str) -> None:
    inputs = shape.interleaved(perfguard.device)
    perfguard(
        operators.clamped_swiglu,
        *inputs,
        reference=reference.clamped_swiglu,
        work=gate_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.clamped_swiglu, *inputs),
        walk=other_rows(shape, lambda s: s.interleaved(perfguard.device)),
    )


@cases([], [RowsShape(24, 40)])
def test_gates_of_columns(perfguard: Any, shape: RowsShape, path: str) -> None:
    """Results are rows whatever the inputs are, also where torch's operators would keep the layout."""
    given = [
        each.detach().t().contiguous().t()
        for each in (*shape.pair(perfguard.device), shape.interleaved(perfguard.device)[0])
    ]

    def both(g: torch.Tensor, u: torch.Tensor, gu: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return operators.silu_mul(g, u), operators.clamped_swiglu(gu)

    def true(g: torch.Tensor, u: torch.Tensor, gu: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.silu_mul(g, u), reference.clamped_swiglu(gu)

    perfguard(both, *given, reference=true, timed=False)


@_cases("CROSS_ENTROPY")
def test_cross_entropy(perfguard: Any, candidates: Candidates, shape: LogitsShape, path: str) -> None:
    """The gradient is there after the forward pass. The backward pass that is timed keeps its graph, and so has to
    write a second one: a training step's does not."""
    inputs = shape.inputs(perfguard.device)
    ids(inputs[1], shape.vocabulary, ignored=-100)
    perfguard(
        operators.cross_entropy,
        *inputs,
        reference=reference.cross_entropy,
        tolerance=TWO_ROUNDINGS,
        work=cross_entropy_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.cross_entropy, *inputs),
        walk=other_rows(shape, lambda s: s.inputs(perfguard.device)),
    )


@cases([], [], shapes.CROSS_ENTROPY_SMALL[1:2])
def test_cross_entropy_of_fixed_logits(perfguard: Any, shape: LogitsShape, path: str) -> None:
    """Without a gradient to compute: less is launched, and nothing is saved."""
    logits, target = shape.inputs(perfguard.device)
    ids(target, shape.vocabulary, ignored=-100)
    perfguard(
        operators.cross_entropy,
        logits.detach(),
        target,
        reference=reference.cross_entropy,
        tolerance=TWO_ROUNDINGS,
        timed=False,
    )


# All at once, and each that is other code without the others.
CROSS_ENTROPY_OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"label_smoothing": 0.1, "softcap": 5.0, "lse_square_scale": 1e-2, "return_z_loss": True},
    "smoothing": {"label_smoothing": 0.1, "reduction": "sum"},
    "softcap": {"softcap": 5.0},
    "weighted-rows": {"reduction": "none"},
}


def class_weights(count: int, device: Any) -> Tensor:
    return torch.linspace(0.25, 2.0, count, device=device)


@cases(shapes.CROSS_ENTROPY[:1], shapes.CROSS_ENTROPY_CPU[:1], [LogitsShape(3, 48)])
@pytest.mark.parametrize("options", CROSS_ENTROPY_OPTIONS)
def test_cross_entropy_with(
    perfguard: Any, candidates: Candidates, shape: LogitsShape, path: str, options: str
) -> None:
    logits, target = shape.inputs(perfguard.device)
    ids(target, shape.vocabulary, ignored=-100)
    how = dict(CROSS_ENTROPY_OPTIONS[options])
    if options in ("all", "weighted-rows"):
        how["weight"] = class_weights(shape.vocabulary, perfguard.device)
    perfguard(
        operators.cross_entropy,
        logits,
        target,
        reference=reference.cross_entropy,
        kwargs=how,
        tolerance=TWO_ROUNDINGS,
        work=cross_entropy_work(shape),
        timed=path == "triton",
        configurations=candidates(operators.cross_entropy, logits, target, **how) if path == "triton" else (),
    )


BELOW_2_31 = Hard(
    without=["values"],
    reason="both operands 2^17 times as large make logits of 2^31 and more, for which the kernel gives NaN, as it says",
)


@_cases("LINEAR_CROSS_ENTROPY")
def test_linear_cross_entropy(perfguard: Any, shape: ProjectedShape, path: str) -> None:
    """In the memory of a chunk of logits: the reference has all of them, and in fp32 once more."""
    inputs = shape.inputs(perfguard.device)
    ids(inputs[2], shape.vocabulary, ignored=-100)
    perfguard(
        operators.linear_cross_entropy,
        *inputs,
        reference=lambda *given, chunk_rows: reference.linear_cross_entropy(*given),
        kwargs={"chunk_rows": 3 if path == "interpreter" else None},
        tolerance=TWO_ROUNDINGS,
        work=linear_cross_entropy_work(shape),
        hard=Hard() if path == "eager" else BELOW_2_31,
        timed=path != "interpreter",
    )


@cases(shapes.LINEAR_CROSS_ENTROPY[1:], shapes.LINEAR_CROSS_ENTROPY_CPU, shapes.LINEAR_CROSS_ENTROPY_SMALL)
@pytest.mark.parametrize("options", ["all", "weighted-rows"])
def test_linear_cross_entropy_with(perfguard: Any, shape: ProjectedShape, path: str, options: str) -> None:
    """With a bias and weights of classes, either reduction: without one, rows are differentiated in a second pass."""
    *inputs, target = shape.inputs(perfguard.device)
    ids(target, shape.vocabulary, ignored=-100)
    how = dict(CROSS_ENTROPY_OPTIONS[options])
    how["weight"] = class_weights(shape.vocabulary, perfguard.device)
    how["linear_bias"] = torch.linspace(-1, 1, shape.vocabulary, device=perfguard.device).bfloat16().requires_grad_()
    perfguard(
        operators.linear_cross_entropy,
        *inputs,
        target,
        reference=lambda *given, chunk_rows, **how: reference.linear_cross_entropy(*given, **how),
        kwargs={"chunk_rows": 3 if path == "interpreter" else None, **how},
        tolerance=TWO_ROUNDINGS,
        work=linear_cross_entropy_work(shape),
        hard=Hard() if path == "eager" else BELOW_2_31,
        timed=path == "triton",
    )


@_cases("MOVED")
def test_padded_index_gather(perfguard: Any, candidates: Candidates, shape: MovedShape, path: str) -> None:
    inputs = shape.gathered(perfguard.device)
    ids(inputs[1], shape.rows)
    perfguard(
        operators.padded_index_gather,
        *inputs,
        reference=reference.padded_index_gather,
        work=gather_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.padded_index_gather, *inputs),
        walk=other_rows(shape, lambda s: s.gathered(perfguard.device)),
    )


@_cases("MOVED")
def test_scatter_for_grouped_gemm(perfguard: Any, candidates: Candidates, shape: MovedShape, path: str) -> None:
    """Without counts on the host: the way that waits for nothing."""
    alignment = 128 if path == "triton" else 8
    how: dict[str, Any] = {"alignment": alignment, "host_counts": False}
    inputs = shape.scattered(perfguard.device)
    ids(inputs[1], shape.groups)
    perfguard(
        operators.scatter_for_grouped_gemm,
        *inputs,
        reference=reference.scatter_for_grouped_gemm,
        kwargs=how,
        work=scatter_work(shape, alignment),
        timed=path != "interpreter",
        configurations=candidates(operators.scatter_for_grouped_gemm, *inputs, **how),
        walk=other_rows(shape, lambda s: s.scattered(perfguard.device)),
    )


@cases((), [MovedShape(40, 8, 4)], [MovedShape(40, 8, 4)])
def test_scatter_of_rows_for_nobody(
    perfguard: Any, shape: MovedShape, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where nobody reads experts before they are used: one out of range sends its row nowhere."""
    monkeypatch.setattr(scatter, "require_indices", lambda *_: None)
    groups, alignment = shape.groups, 4

    def places(expert: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return scatter.places_of(expert, groups, alignment, len(expert) + groups * (alignment - 1))

    def true(expert: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ks = torch.stack([(expert == group).sum() for group in range(groups)])
        ks = ((ks + alignment - 1) // alignment * alignment).int()
        offs, rev = ks.cumsum(0, dtype=torch.int32), torch.full_like(expert, -1)
        source = torch.full((len(expert) + groups * (alignment - 1),), -1, dtype=torch.int32, device=expert.device)
        for group in range(groups):
            members = (expert == group).nonzero()[:, 0]
            rev[members] = torch.arange(len(members), device=expert.device) + int(offs[group] - ks[group])
            source[rev[members]] = members.int()
        return rev, offs, ks, source

    expert = torch.randint(-1, groups + 1, (shape.rows,), device=perfguard.device)
    perfguard(places, ids(expert, groups + 1, ignored=-1), reference=true, timed=False)


@_cases("BIASED")
def test_indexed_bias_add(perfguard: Any, candidates: Candidates, shape: GroupedRows, path: str) -> None:
    inputs = shape.biased(perfguard.device)
    offsets(inputs[3], ids=inputs[2])
    perfguard(
        operators.indexed_bias_add,
        *inputs,
        reference=reference.indexed_bias_add,
        work=bias_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.indexed_bias_add, *inputs),
        walk=other_rows(shape, lambda s: s.biased(perfguard.device)),
    )


@cases([], [], shapes.BIASED_SMALL[:1])
def test_indexed_bias_add_by_whole_groups(perfguard: Any, shape: GroupedRows, path: str) -> None:
    """The interpreter's second candidate: in the backward pass one program sums a whole group, and none sums parts."""
    whole = functools.partial(operators.indexed_bias_add, candidate=1)
    perfguard(whole, *shape.biased(perfguard.device), reference=reference.indexed_bias_add, timed=False)


@cases([], [], [GroupedRows(18, 20, 2)])
def test_indexed_bias_add_by_parts(perfguard: Any, shape: GroupedRows, path: str) -> None:
    """Groups of 17 and 1 rows have as many parts of 16 as 18 rows can have: what is stored past the last one's sum lies
    past the buffer of sums."""
    x, bias, _, offs = shape.biased(perfguard.device)
    offs = torch.tensor([17, 18], dtype=offs.dtype, device=offs.device)
    ids = torch.searchsorted(offs, torch.arange(18, device=offs.device), right=True)
    perfguard(operators.indexed_bias_add, x, bias, ids, offs, reference=reference.indexed_bias_add, timed=False)


@_cases("LINEAR")
def test_grouped_linear(perfguard: Any, shape: GroupedRows, path: str) -> None:
    x, offs = shape.linear(perfguard.device)
    offsets(offs)
    layer = GroupedLinear(shape.groups, shape.width, shape.outputs, device=perfguard.device, dtype=x.dtype)
    flop = 2 * shape.elements * shape.outputs
    perfguard(
        layer,
        x,
        offs,
        reference=lambda x, offs: reference.grouped_linear(x, layer.weight, offs),
        work=Work(flop=flop, backward_flop=2 * flop),
    )


@_cases("LINEAR")
def test_deferred_weight_gradients(perfguard: Any, shape: GroupedRows, path: str) -> None:
    """Micro-batches forward and backward, then what the store put off: the late gradient is an output, too."""
    x, offs = shape.linear(perfguard.device)
    weight = torch.randn(shape.groups, shape.outputs, shape.width, device=x.device, dtype=x.dtype) / shape.width**0.5
    grads = [torch.randn(len(x), shape.outputs, device=x.device, dtype=x.dtype) for _ in range(2)]
    perfguard(deferred, x.detach(), weight, offsets(offs), *grads, reference=direct, timed=False)


def deferred(x: Tensor, weight: Tensor, offs: Tensor, *grads: Tensor) -> tuple[Tensor, ...]:
    """-> output and gradient of x for each incoming gradient, and the sum of the weight's."""
    groups, outputs, inputs = weight.shape
    store = WeightGradStore()
    layer = GroupedLinear(groups, inputs, outputs, store=store, device="meta")
    layer.weight = torch.nn.Parameter(weight)
    found = []
    for grad in grads:
        leaf = x.detach().requires_grad_()
        y = layer(leaf, offs)
        with store:
            y.backward(grad)
        store.flush()
        found += [y.detach(), leaf.grad]
    assert layer.weight.grad is None, "the store puts it off"
    for _ in grads:
        store.pop()
    return *found, layer.weight.grad


def direct(x: Tensor, weight: Tensor, offs: Tensor, *grads: Tensor) -> tuple[Tensor, ...]:
    """The same by autograd, at once."""
    x, weight = (tensor.detach().requires_grad_() for tensor in (x, weight))
    found, total = [], torch.zeros_like(weight)
    for grad in grads:
        y = reference.grouped_linear(x, weight, offs)
        dx, dweight = torch.autograd.grad(y, (x, weight), grad)
        found += [y.detach(), dx]
        total = total.detach() + dweight
    return *found, total
