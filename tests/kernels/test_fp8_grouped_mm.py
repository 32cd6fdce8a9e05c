"""The float8 grouped matmul: accuracy, groups of any size, layouts, what is saved, what is read, which way is taken.

Without a GPU the quantisers run eagerly, where not said otherwise, and the matmul is emulated or torch's row-wise one
in a loop; torch's grouped one is stood in for by `Library`, which insists on what the library insists on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from kernels import fp8
from kernels.fp8 import scaled
from kernels.fp8.formats import FORMATS
from kernels.fp8.grouped_shapes import MATMUL_A, MATMUL_B, MatmulShape
from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS
from kernels.fp8.shapes import Split, equal, splits
from tests.kernels.guards import no_device_waits, no_host_reads
from tests.kernels.paths import GPU, KernelPath

DEVICE = torch.device(GPU or "cpu")
SIZES = Split("sizes", (0, 1, 7, 15, 17, 33), unused=3)  # no group a multiple of 16, an empty one, rows of no group
BACKENDS = pytest.mark.parametrize("backend", [None] if GPU else ["emulation", "loop"])
Tensors = tuple[torch.Tensor, ...]


def operands(
    split: Split, inner: int, outer: int, dtype: torch.dtype = torch.bfloat16, weight_dtype: torch.dtype | None = None
) -> Tensors:
    """a (R, K), NaN past the last group; w (E, N, K); offs (E,)."""
    a = torch.randn(split.rows, inner).to(DEVICE, dtype)
    a[sum(split.sizes) :] = torch.nan
    w = torch.randn(split.groups, outer, inner).to(DEVICE, weight_dtype or dtype)
    return a, w, split.offs(DEVICE)


def upstream(split: Split, outer: int) -> torch.Tensor:
    """grad_out (R, N), NaN past the last group."""
    grad = torch.randn(split.rows, outer).to(DEVICE, torch.bfloat16)
    grad[sum(split.sizes) :] = torch.nan
    return grad


def differentiated(
    function: Any, a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor, grad: torch.Tensor, transposed: bool = True
) -> Tensors:
    """(out, gradient of a, gradient of w)."""
    a, w = a.detach().requires_grad_(), w.detach().requires_grad_()
    out = function(a, w.mT if transposed else w, offs)
    return out.detach(), *torch.autograd.grad(out, (a, w), grad)


def by_group(a: torch.Tensor, b_t: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """The same matmul in the operands' own dtype."""
    parts = [a[start:end] @ b_t[group] for group, (start, end) in enumerate(pairwise([0, *offs.tolist()]))]
    return torch.cat([*parts, a.new_zeros(a.shape[0] - int(offs[-1]), b_t.shape[2])])


def sqnr(truth: torch.Tensor, got: torch.Tensor) -> float:
    truth, got = truth.double(), got.double()
    return (20 * torch.log10(truth.norm() / (truth - got).norm())).item()


def assert_close(got: Tensors, expected: Tensors, because: str = "") -> None:
    """One rounding to bf16 and the order of summation apart, in every row: the codes are the same."""
    for name, one, other in zip(("out", "grad_a", "grad_w"), got, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert one.isfinite().all(), f"{because}: {name} is not finite"
        distance = (one.double() - other.double()).norm(dim=-1)
        limit = 0.005 * other.double().norm(dim=-1) + 1e-3
        assert (distance <= limit).all(), f"{because}: {name} is off by {(distance / limit).max().item():.3g} limits"


# ---------------------------------------------------------------------------------------------------
# Accuracy against the same computation in bf16


def assert_sqnr(truth: Tensors, got: Tensors, offs: torch.Tensor, least: float) -> None:
    """Scale-sensitive, of the whole and of the worst group that has rows, which may be 1.5 dB lower."""
    bounds = [(g, s, e) for g, (s, e) in enumerate(pairwise([0, *offs.tolist()])) if e > s]
    for name, true, ours in zip(("out", "input grad", "weight grad"), truth, got, strict=True):
        whole = sqnr(true, ours)
        rows = name != "weight grad"
        worst = min(sqnr(true[s:e], ours[s:e]) if rows else sqnr(true[g], ours[g]) for g, s, e in bounds)
        assert whole >= least, f"{name}: {whole:.2f} dB, at least {least} are due"
        assert worst >= least - 1.5, f"{name}: {worst:.2f} dB in the worst group, at least {least - 1.5} are due"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz] if not GPU else [None], ids=str)
@pytest.mark.parametrize("split", [equal(512, 4), Split("hot", (16, 0, 40, 456))], ids=str)
def test_one_matmul_keeps_28_db(split: Split, dtype: torch.dtype | None) -> None:
    """N(0, 1) operands, exact accumulation; bits of one format read as the other would give 6 dB."""
    a, w, offs = operands(split, 256, 192)
    grad = upstream(split, 192)
    ours = partial(fp8.grouped_mm, dtype=dtype, fast_accum=False)
    assert_sqnr(differentiated(by_group, a, w, offs, grad), differentiated(ours, a, w, offs, grad), offs, 28.0)


def test_swiglu_expert_keeps_23_db() -> None:
    """Three matmuls, random upstream gradient, every parameter's gradient; weights as they are initialised."""
    split = Split("", (96, 0, 31, 129))
    x, _, offs = operands(split, 128, 192)
    w1, w3 = ((0.02 * torch.randn(4, 192, 128)).to(x) for _ in range(2))
    w2 = (0.02 * torch.randn(4, 128, 192)).to(x)
    grad = upstream(split, 128)

    def run(matmul: Any) -> Tensors:
        leaves = [t.detach().requires_grad_() for t in (x, w1, w2, w3)]
        a, one, two, three = leaves
        hidden = torch.nn.functional.silu(matmul(a, one.mT, offs)) * matmul(a, three.mT, offs)
        out = matmul(hidden, two.mT, offs)
        return out.detach(), *torch.autograd.grad(out, leaves, grad)

    truth, got = run(by_group), run(fp8.grouped_mm)
    assert_sqnr(truth[:3], got[:3], offs, 23.0)
    for true, ours in zip(truth[3:], got[3:], strict=True):
        assert_sqnr((true,) * 3, (ours,) * 3, torch.arange(1, 5), 23.0)


def test_fast_accumulation_keeps_27_db(gpu: torch.device) -> None:
    for shape in (MATMUL_A, MATMUL_B):
        a, w, offs = shape.inputs(gpu)
        grad = torch.randn(shape.rows, shape.outer, device=gpu, dtype=torch.bfloat16)
        truth = differentiated(by_group, a, w, offs, grad)
        for fast, least in ((True, 27.0), (False, 28.0)):
            ours = partial(fp8.grouped_mm, fast_accum=fast)
            assert_sqnr(truth, differentiated(ours, a, w, offs, grad), offs, least)


# ---------------------------------------------------------------------------------------------------
# Against the eager reference


@BACKENDS
@pytest.mark.parametrize("split", [SIZES, *splits(hot_rows=256)], ids=str)
def test_splits(split: Split, backend: str | None) -> None:
    """Groups of any size; rows of no group hold NaN in a and grad_out, and are zero in out and grad_a."""
    ours = partial(fp8.grouped_mm, backend=backend)
    a, w, offs = operands(split, 32, 48)
    grad = upstream(split, 48)
    got = differentiated(ours, a, w, offs, grad)
    used = sum(split.sizes)
    expected = differentiated(fp8.reference.grouped_mm, a, w, offs, grad)
    assert_close(got, expected, str(split))
    assert not got[0][used:].any()
    assert not got[1][used:].any()
    for group, size in enumerate(split.sizes):
        assert bool(got[2][group].any()) == (size > 0), f"group {group} of {size} rows"


@BACKENDS
@pytest.mark.parametrize(("inner", "outer"), [(16, 16), (47, 33), (1, 7), (48, 1), (0, 5), (5, 0)])
def test_widths(inner: int, outer: int, backend: str | None) -> None:
    """Widths that the library does not take, and none at all."""
    ours = partial(fp8.grouped_mm, backend=backend)
    a, w, offs = operands(SIZES, inner, outer)
    grad = upstream(SIZES, outer)
    expected = differentiated(fp8.reference.grouped_mm, a, w, offs, grad)
    assert_close(differentiated(ours, a, w, offs, grad), expected, f"{inner} x {outer}")


@pytest.mark.parametrize("operand", ["a", "b_t", "grad_out"])
def test_layouts(operand: str) -> None:
    """The same values elsewhere in memory, and gradients of a sum, a slice and a `cat`; bit for bit."""
    a, w, offs = operands(Split("", (19, 0, 13)), 24, 40)
    b_t, grad = w.mT.contiguous(), torch.randn(32, 40, device=DEVICE, dtype=torch.bfloat16)
    for name, layout in {**LAYOUTS, **SHARING_LAYOUTS}.items():
        given = {"a": a, "b_t": b_t, "grad_out": grad}
        given[operand] = layout(given[operand])

        def run(a: torch.Tensor, b_t: torch.Tensor, grad_out: torch.Tensor) -> Tensors:
            a, b_t = a.detach().requires_grad_(), b_t.detach().requires_grad_()
            out = fp8.grouped_mm(a, b_t, offs)
            return out.detach(), *torch.autograd.grad(out, (a, b_t), grad_out)

        plain = {key: value.clone(memory_format=torch.contiguous_format) for key, value in given.items()}
        for one, other in zip(run(**given), run(**plain), strict=True):
            assert one.equal(other), name


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)], ids=str)
def test_gradients_have_their_inputs_dtype(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """fp32 master weights; the gradient of b_t is a view of a contiguous (E, N, K)."""
    a, w, offs = operands(SIZES, 32, 48, *dtypes)
    grad = upstream(SIZES, 48)
    b_t = w.mT.detach().requires_grad_()
    a = a.requires_grad_()
    out = fp8.grouped_mm(a, b_t, offs)
    grad_a, grad_b_t = torch.autograd.grad(out, (a, b_t), grad)
    assert (out.dtype, grad_a.dtype, grad_b_t.dtype) == (torch.bfloat16, *dtypes)
    assert out.is_contiguous()
    assert grad_b_t.mT.is_contiguous()
    expected = differentiated(fp8.reference.grouped_mm, a, w, offs, grad)
    assert_close((out.detach(), grad_a, grad_b_t.mT), expected)


def test_non_finite_rows_stay_where_they_are() -> None:
    """A NaN spoils its row of out and grad_a, and its column of one group's weight gradient; nothing becomes finite."""
    split = Split("", (20, 9))
    a, w, offs = operands(split, 32, 48)
    a[4, 7] = torch.inf
    grad = upstream(split, 48)
    grad[22, 5] = torch.nan
    out, grad_a, grad_w = differentiated(fp8.grouped_mm, a, w, offs, grad)
    bad_out, bad_a, bad_w = torch.zeros_like(out), torch.zeros_like(grad_a), torch.zeros_like(grad_w)
    bad_out[4], bad_a[22], bad_w[0, :, 7], bad_w[1, 5] = 1, 1, 1, 1
    for got, bad in ((out, bad_out), (grad_a, bad_a), (grad_w, bad_w)):
        assert got.isnan().equal(bad.bool())
        assert got[~bad.bool()].isfinite().all()


# ---------------------------------------------------------------------------------------------------
# What runs, and what is kept


class Operators(TorchDispatchMode):
    """Names of our operators, in the order they run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "perfguard_kernels":
            self.names.append(func._opname.removeprefix("fp8_"))
        return func(*args, **(kwargs or {}))


ROWS, B, MATMUL = "quantize_rowwise", "quantize_colwise_3d", "matmul_2d3d"
COLUMNS, WEIGHT = "quantize_colwise_per_group_padded", "quantize_transpose_3d_atomic"
BOTH_ROWS, BOTH_B = "quantize_rowwise_colwise_per_group_padded", "quantize_colwise_transpose_3d"
ALL, WGRAD = "quantize_matmul_operands", "matmul_2d2d"


@pytest.mark.parametrize(
    ("needs_a", "needs_b", "keep", "forward", "backward"),
    [
        (True, True, False, [BOTH_ROWS, B, MATMUL], [BOTH_ROWS, WEIGHT, MATMUL, WGRAD]),
        (True, True, True, [ALL, MATMUL], [BOTH_ROWS, MATMUL, WGRAD]),
        (True, False, False, [ROWS, B, MATMUL], [ROWS, WEIGHT, MATMUL]),
        (True, False, True, [ROWS, BOTH_B, MATMUL], [ROWS, MATMUL]),
        (False, True, False, [BOTH_ROWS, B, MATMUL], [COLUMNS, WGRAD]),
        (False, True, True, [BOTH_ROWS, B, MATMUL], [COLUMNS, WGRAD]),
        (False, False, True, [ROWS, B, MATMUL], None),
    ],
)
def test_only_what_is_needed_runs(
    needs_a: bool, needs_b: bool, keep: bool, forward: list[str], backward: list[str] | None
) -> None:
    a, w, offs = operands(SIZES, 32, 48)
    a, w = a.requires_grad_(needs_a), w.requires_grad_(needs_b)
    with Operators() as ran:
        out = fp8.grouped_mm(a, w.mT, offs, keep_fp8_weights=keep)
    assert ran.names == forward
    assert out.requires_grad == (backward is not None)
    if backward is None:
        return
    with Operators() as ran:
        out.backward(torch.ones_like(out))
    assert ran.names == backward
    assert (a.grad is not None, w.grad is not None) == (needs_a, needs_b)
    with torch.no_grad(), Operators() as ran:
        fp8.grouped_mm(a, w.mT, offs, keep_fp8_weights=keep)
    assert ran.names == [ROWS, B, MATMUL], "without a graph nothing is prepared for backward"


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("needs_a", "needs_b"), [(True, True), (True, False), (False, True)])
def test_saved_bytes_are_exact(needs_a: bool, needs_b: bool, keep: bool) -> None:
    """Each storage once: padded column codes of a, weight codes where kept, scales, offs; the weight by reference."""
    inner, outer, experts = 32, 48, SIZES.groups
    a, w, offs = operands(SIZES, inner, outer)
    a, w = a.requires_grad_(needs_a), w.requires_grad_(needs_b)
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = fp8.grouped_mm(a, w.mT, offs, keep_fp8_weights=keep)
    by_reference = saved.pop(w.untyped_storage().data_ptr(), 0)
    assert by_reference == (w.numel() * 2 if needs_a and not keep else 0)
    assert saved.pop(offs.untyped_storage().data_ptr()) == 4 * experts
    padded = -(-(SIZES.rows + 15 * experts) // 16) * 16
    expected = [padded * inner, 4 * experts * inner] if needs_b else []
    expected += [experts * inner * outer, 4 * experts * inner] if needs_a and keep else []
    assert sorted(saved.values()) == sorted(expected)
    held = [key for key, value in vars(out.grad_fn).items() if isinstance(value, torch.Tensor)]
    assert not held, "tensors beside the saved ones"


def test_a_second_derivative_is_refused_by_name() -> None:
    a, w, offs = operands(SIZES, 32, 48)
    a = a.nan_to_num().requires_grad_()
    out = fp8.grouped_mm(a, w.mT, offs)
    with pytest.raises(RuntimeError, match=r"^grouped_mm: its gradient was asked for with create_graph=True"):
        torch.autograd.grad(out.sum(), a, create_graph=True)
    torch.autograd.grad(out.sum(), a)


def test_changed_weights_are_noticed() -> None:
    """The weight is kept by reference, so autograd must see that it is another one now."""
    a, w, offs = operands(SIZES, 32, 48)
    a = a.requires_grad_()
    out = fp8.grouped_mm(a, w.mT, offs)
    w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ---------------------------------------------------------------------------------------------------
# Compilation and checkpointing


def layer(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Something on either side, so that fake strides are relied on."""
    return fp8.grouped_mm(a * 2, w.mT, offs).float().sin()


# Dynamo itself makes an instance of every autograd function that it traces, and torch warns of that.
DYNAMO_INSTANTIATES = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@DYNAMO_INSTANTIATES
@pytest.mark.parametrize("backend", ["eager", "aot_eager", *(["inductor"] if GPU else [])])
def test_compiles_whole(backend: str) -> None:
    """One graph for any offsets, one more for any number of rows."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    graphs = []
    for split in (
        Split("", (3, 17, 20)),
        Split("", (0, 0, 30), unused=10),  # the same rows, otherwise
        Split("", (40, 0, 0)),
        Split("", (1, 1, 55)),
        Split("", (64, 0, 3), unused=7),
        Split("", (0, 0, 0), unused=48),
    ):
        a, w, offs = operands(split, 32, 48, weight_dtype=torch.float32)
        grad = torch.randn(split.rows, 48, device=DEVICE)
        got, expected = (differentiated(run, a, w, offs, grad, transposed=False) for run in (compiled, layer))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5 if GPU else 0, atol=1e-5 if GPU else 0)
            assert one.stride() == other.stride()
        graphs.append(counter.frame_count)
    assert graphs == [1, 1, 1, 2, 2, 2]


@DYNAMO_INSTANTIATES
@pytest.mark.parametrize("how", ["reentrant", "non-reentrant", "compiled"])
def test_activation_checkpointing(how: str) -> None:
    def recomputing(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, a, w, offs, use_reentrant=how == "reentrant")  # type: ignore[no-any-return]

    torch._dynamo.reset()
    function = torch.compile(recomputing, backend="aot_eager", fullgraph=True) if how == "compiled" else recomputing
    a, w, offs = operands(SIZES, 32, 48)
    a = a.nan_to_num()
    if how == "reentrant":  # its autograd function takes no torch.autograd.grad
        a, w = a.requires_grad_(), w.requires_grad_()
        function(a, w, offs).sum().backward()
        got: tuple[torch.Tensor | None, ...] = (a.grad, w.grad)
    else:
        ones = torch.ones(SIZES.rows, 48, device=DEVICE)
        got = differentiated(function, a, w, offs, ones, transposed=False)[1:]
    expected = differentiated(layer, a, w, offs, torch.ones(SIZES.rows, 48, device=DEVICE), transposed=False)[1:]
    for one, other in zip(got, expected, strict=True):
        assert one is not None
        assert one.equal(other)


def matmul_arguments() -> Iterator[tuple[str, Tensors]]:
    a, w, offs = operands(Split("", (17, 0, 3)), 32, 48)
    codes_a, scales_a = fp8.quantize_rowwise(a, power_of_two=True)
    codes_b, scales_b = fp8.quantize_colwise_3d(w.mT, power_of_two=True)
    yield "fp8_matmul_2d3d", (codes_a, 1 / scales_a, codes_b, 1 / scales_b.squeeze(1), offs)
    codes1, scales1, codes2, scales2, padded = fp8.quantize_colwise_per_group_dual(a, a, offs, alignment=16)
    yield "fp8_matmul_2d2d", (codes1.t(), 1 / scales1, codes2, 1 / scales2, padded)


def test_opcheck() -> None:
    """But for the schema, which torch checks by arithmetic that fp8 tensors do not have: that is done here by bytes."""
    for name, arguments in matmul_arguments():
        operator = getattr(torch.ops.perfguard_kernels, name).default
        tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(operator, (*arguments, True, None), test_utils=tests)
        before = [bytes(tensor.untyped_storage().tolist()) for tensor in arguments]
        out = operator(*arguments, True, None)
        assert before == [bytes(tensor.untyped_storage().tolist()) for tensor in arguments]
        storages = {tensor.untyped_storage().data_ptr() for tensor in arguments}
        assert out.untyped_storage().data_ptr() not in storages


def test_matmuls_refuse_to_be_differentiated() -> None:
    """The codes are no function that autograd could follow; a gradient of nothing would be worse."""
    for name, (codes, scales, *rest) in matmul_arguments():
        out = getattr(torch.ops.perfguard_kernels, name)(codes, scales.requires_grad_(), *rest, True, None)
        with pytest.raises(RuntimeError, match=r"no autograd formula was registered"):
            out.sum().backward()


# ---------------------------------------------------------------------------------------------------
# Which matmul


class Library:
    """In the place of `torch._scaled_grouped_mm`: its demands, its gaps, and the numbers of the emulation.

    What it leaves unwritten (rows of no group, groups of no row) holds NaN.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.calls = 0
        self.factor = factor

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, a_inverse: torch.Tensor, b_inverse: torch.Tensor, *, offs: torch.Tensor,
        out_dtype: torch.dtype, use_fast_accum: bool,
    ) -> torch.Tensor:  # fmt: skip
        self.calls += 1
        groups = offs.shape[0]
        assert 0 < groups < 1024
        assert a.stride(1) == 1
        assert b.stride(-2) == 1
        for tensor in (a, b):
            assert tensor.data_ptr() % 16 == 0
            assert all(size % 16 == 0 for size in tensor.shape[-1 if tensor is a else -2 :])
            assert all(stride % 16 == 0 for stride in tensor.stride() if stride != 1)
        assert a_inverse.is_contiguous()
        assert b_inverse.is_contiguous()
        meta = torch.ops.aten._scaled_grouped_mm(  # torch's own checks
            *(t.to("meta") for t in (a, b, a_inverse, b_inverse)),
            offs=offs.to("meta"), out_dtype=out_dtype, use_fast_accum=use_fast_accum,
        )  # fmt: skip
        if b.ndim == 3:
            out = scaled.by_group_2d3d(scaled.emulated, a, b, a_inverse, b_inverse, offs)
            out[int(offs[-1]) :] = torch.nan
        else:
            assert not (offs % 16).any()
            inverses = a_inverse.view(groups, -1), b_inverse.view(groups, -1)
            out = scaled.by_group_2d2d(scaled.emulated, a, b, *inverses, offs)
            out[torch.diff(offs, prepend=offs.new_zeros(1)) == 0] = torch.nan
        assert meta.shape == out.shape
        return out * self.factor


@pytest.fixture
def library() -> Iterator[Library]:
    stand_in = Library()
    with mock.patch.object(torch, "_scaled_grouped_mm", stand_in):
        yield stand_in


@pytest.mark.skipif(GPU is not None, reason="the library itself is tried above")
@pytest.mark.parametrize(("inner", "outer"), [(32, 48), (47, 33)])
@pytest.mark.parametrize("split", [SIZES, Split("empty", (0, 0), unused=5), Split("none", (0,)), equal(64, 4)], ids=str)
def test_grouped_path(split: Split, inner: int, outer: int, library: Library) -> None:
    """What the library leaves unwritten is zeroed, what it wants is given to it."""
    ours = partial(fp8.grouped_mm, backend="grouped")
    a, w, offs = operands(split, inner, outer)
    grad = upstream(split, outer)
    got = differentiated(ours, a, w, offs, grad)
    for one, other in zip(got, differentiated(fp8.grouped_mm, a, w, offs, grad), strict=True):
        assert one.equal(other)
    assert library.calls == (3 if split.rows else 1)  # a padded buffer has no rows only where there is no group


@pytest.mark.parametrize("groups", [1, 3, 4, 5, 12])
def test_many_groups_are_split_into_calls(groups: int) -> None:
    """With 3 groups a call in place of 1023; equal to one call, bit for bit."""
    split = Split("", tuple((7 * group) % 5 for group in range(groups)), unused=2)
    a, w, offs = operands(split, 16, 16)
    for in_parts in ("in_parts_2d3d", "in_parts_2d2d"):
        sizes: list[int] = []
        by_group = scaled.by_group_2d3d if in_parts == "in_parts_2d3d" else scaled.by_group_2d2d
        emulate = partial(by_group, scaled.emulated)

        def counted(*arguments: torch.Tensor, emulate: Any = emulate, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(arguments[-1].shape[0])
            return emulate(*arguments)  # type: ignore[no-any-return]

        if in_parts == "in_parts_2d3d":
            codes, scales = fp8.quantize_rowwise(a.nan_to_num())
            weight, weight_scales = fp8.quantize_colwise_3d(w.mT)
            arguments = (codes, weight, 1 / scales.flatten(), 1 / weight_scales.squeeze(1), offs)
        else:
            left, scales1, right, scales2, padded = fp8.quantize_colwise_per_group_dual(a, a, offs, alignment=16)
            shaped = (1 / scales1.view(groups, 16), 1 / scales2.view(groups, 16))
            arguments = (left.t(), right, *shaped, padded)
        got = getattr(scaled, in_parts)(counted, *arguments, limit=3)
        used = sum(split.sizes) if in_parts == "in_parts_2d3d" else groups
        assert got[:used].equal(emulate(*arguments)[:used])
        assert max(sizes) <= 3
        assert sum(sizes) == groups + len(sizes) - 1


def test_a_cpu_emulates() -> None:
    assert fp8.grouped_mm.path("cpu") == "emulation"
    assert scaled.probe("cpu").refusals


def test_a_probe_tries_each_way_once_and_tells_why() -> None:
    """Wrong numbers are a refusal as an error is: bits of another format come back without one."""
    meta, e4m3fn = torch.device("cpu"), torch.float8_e4m3fn
    with mock.patch.object(torch, "_scaled_grouped_mm", Library()) as good:
        assert scaled._try_backends(meta, e4m3fn) == scaled.Probe("grouped", (), "grouped")
        assert good.calls == 2
    with mock.patch.object(torch, "_scaled_grouped_mm", Library(factor=0.5)):
        assert scaled.refusal("grouped", meta, e4m3fn) == "results are off by 0.5 of their norm in 2d3d"
    broken = mock.Mock(side_effect=RuntimeError("only sm_90\nand a stack"))
    with mock.patch.object(torch, "_scaled_grouped_mm", broken), mock.patch.object(torch, "_scaled_mm", broken):
        assert scaled._try_backends(meta, e4m3fn) == scaled.Probe(
            "emulation", ("grouped: only sm_90", "loop: only sm_90"), "emulation"
        )
    full = mock.Mock(side_effect=torch.OutOfMemoryError("full"))
    with mock.patch.object(torch, "_scaled_grouped_mm", full), pytest.raises(torch.OutOfMemoryError):
        scaled.refusal("grouped", meta, e4m3fn)


@pytest.mark.parametrize("arch", ["sm_100", "sm_103"])
def test_a_blackwell_without_torch_s_matmul_takes_ours(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop reads offs on the host, three times a step."""
    reasons: dict[str, str | None] = {"grouped": "row-wise scales are refused", "triton": None, "loop": None}
    monkeypatch.setattr(scaled, "arch_of", lambda _: arch)
    monkeypatch.setattr(scaled, "refusal", lambda backend, *_: reasons[backend])
    taken = scaled._try_backends(torch.device("cuda", 0), torch.float8_e4m3fn)
    assert taken == scaled.Probe("triton", ("grouped: row-wise scales are refused",), "triton")
    reasons["grouped"] = None
    assert scaled._try_backends(torch.device("cuda", 0), torch.float8_e4m3fn) == scaled.Probe("grouped", (), "grouped")


@pytest.mark.parametrize("context", ["float64", "meta", "autocast"])
def test_a_probe_takes_nothing_of_the_user(context: str) -> None:
    """Numbers that it makes are float32 on the CPU, whatever the defaults are."""
    e4m3fn = torch.float8_e4m3fn
    expected = scaled.refusal("loop", DEVICE, e4m3fn)
    contexts = {
        "float64": mock.patch.object(torch, "get_default_dtype", torch.get_default_dtype),
        "meta": torch.device("meta"),
        "autocast": torch.autocast("cpu", torch.float16),
    }
    before = torch.get_default_dtype()
    with contexts[context]:
        try:
            torch.set_default_dtype(torch.float64 if context == "float64" else before)
            assert scaled.refusal("loop", DEVICE, e4m3fn) == expected
        finally:
            torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_loop_works_here_or_says_why(dtype: torch.dtype) -> None:
    """The probe of the real row-wise matmul on this machine agrees with what a call of it does."""
    a, w, offs = operands(SIZES, 32, 48)
    reason = scaled.refusal("loop", DEVICE, dtype)
    if reason is None:
        got = fp8.grouped_mm(a, w.mT, offs, dtype=dtype, backend="loop")
        truth = fp8.grouped_mm(a, w.mT, offs, dtype=dtype, backend="emulation")
        assert sqnr(truth, got) > 40
    else:
        assert reason


def test_a_hopper_takes_our_way_and_a_blackwell_torchs(gpu: torch.device) -> None:
    from kernels.hardware import arch_of

    taken: dict[str, scaled.Backend] = {"sm_90": "triton", "sm_100": "grouped"}
    if arch_of(gpu) not in taken:
        pytest.skip(f"needs sm_90 or sm_100: this is {arch_of(gpu)}")
    assert scaled.probe(gpu) == scaled.Probe(taken[arch_of(gpu)], (), "grouped")


# ---------------------------------------------------------------------------------------------------
# Memory and the host


@pytest.mark.parametrize("backend", ["triton", "grouped"])
def test_the_host_reads_no_data(backend: str, triton_path: KernelPath) -> None:
    """On our way and the grouped one, forward and backward, with the matmuls left out where there is no GPU."""
    a, w, offs = operands(Split("", (5, 0, 3), unused=2), 16, 16)
    a, w = a.requires_grad_(), w.requires_grad_()

    def leave_out(a: torch.Tensor, b: torch.Tensor, *_: Any, offs: torch.Tensor, **__: Any) -> torch.Tensor:
        shape = (a.shape[0], b.shape[2]) if b.ndim == 3 else (offs.shape[0], a.shape[0], b.shape[1])
        return a.new_empty(shape, dtype=torch.bfloat16)

    def call() -> None:
        out = fp8.grouped_mm(a, w.mT, offs, backend="grouped")
        out.backward(torch.ones_like(out))

    if GPU == "cuda":
        call()  # compilation may read what it likes
        with no_device_waits():
            call()
    else:
        with mock.patch.object(torch, "_scaled_grouped_mm", leave_out), no_host_reads():
            call()


def test_replays_in_a_cuda_graph(gpu: torch.device) -> None:
    """Forward and backward captured once, right for other data and other offsets."""
    if fp8.grouped_mm.path(gpu) not in ("triton", "grouped"):
        pytest.skip("needs our way or the grouped one: the others read offs on the host")
    first, second = Split("", (700, 0, 300), unused=24), Split("", (0, 1000, 1), unused=23)
    a, w, offs = operands(first, 192, 256)
    grad = upstream(first, 256)
    differentiated(fp8.grouped_mm, a, w, offs, grad)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = differentiated(fp8.grouped_mm, a, w, offs, grad)
    for split in (first, second, first):
        new_a, new_w, new_offs = operands(split, 192, 256)
        new_grad = upstream(split, 256)
        for target, source in zip((a, w, offs, grad), (new_a, new_w, new_offs, new_grad), strict=True):
            target.copy_(source)
        graph.replay()
        expected = differentiated(fp8.grouped_mm, new_a, new_w, new_offs, new_grad)
        for one, other in zip(results, expected, strict=True):
            assert one.equal(other)


def test_more_than_two_to_the_31_outputs(gpu: torch.device) -> None:
    if gpu.type != "cuda" or torch.cuda.mem_get_info()[0] < 60 << 30:
        pytest.skip("needs 60 GiB of free device memory")
    rows = 280_000
    shape = MatmulShape(2, rows, 64, 8192)
    a, w, _ = shape.inputs(gpu)
    offs = torch.tensor([5, rows - 300], dtype=torch.int32, device=gpu)
    with torch.no_grad():
        out = fp8.grouped_mm(a, w.mT, offs)
        tail = fp8.grouped_mm(a[-1000:], w.mT, torch.tensor([0, 700], dtype=torch.int32, device=gpu))
    assert out[-1000:].equal(tail)


# ---------------------------------------------------------------------------------------------------
# Wrong arguments

A, B_T, OFFS = torch.zeros(8, 16), torch.zeros(2, 16, 32), torch.tensor([3, 8], dtype=torch.int32)
WRONG = [
    ({"a": A[0]}, "a: has 1 dimensions, shape (16,); may have 2"),
    ({"a": A.double()}, "a: is torch.float64; may be torch.bfloat16, "),
    ({"a": A.half()}, "a: is torch.float16, which weight gradients overflow; may be"),
    ({"b_t": B_T[0]}, "b_t: has 2 dimensions, shape (16, 32); may have 3"),
    ({"b_t": B_T.mT}, "b_t: has inner width 32, shape (2, 32, 16); may have 16, the width of a"),
    ({"b_t": B_T.to("meta")}, "b_t: is on meta; may be on cpu, where a is"),
    ({"b_t": B_T.int()}, "b_t: is torch.int32; may be torch.bfloat16, "),
    ({"offs": OFFS.long()}, "offs: is torch.int64; may be torch.int32"),
    ({"offs": OFFS[:1]}, "offs: has 1 elements; may have 2, one for each expert of b_t"),
    ({"offs": OFFS.to("meta")}, "offs: is on meta; may be on cpu"),
    ({"out_dtype": torch.float32}, "out_dtype: is torch.float32; may be torch.bfloat16"),
    ({"dtype": torch.int8}, "dtype: is torch.int8; may be torch.float8_e4m3fn, "),
]


@pytest.mark.parametrize("needs", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((2, 100), "offs: ends at 100; may end at 8 at most"),
        ((5, 3), "offs: decreases to 3 at group 1, after 5"),
        ((-1, 8), "offs: decreases to -1 at group 0, after 0"),
    ],
)
def test_wrong_ends_on_a_cpu_are_named(ends: tuple[int, ...], message: str, needs: str) -> None:
    """Whatever needs a gradient: the matmul reads them, not only the quantiser of a weight's gradient."""
    a, b_t = A.clone().requires_grad_("a" in needs), B_T.clone().requires_grad_("b" in needs)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        fp8.grouped_mm(a, b_t, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"a": A, "b_t": B_T, "offs": OFFS, **wrong}
    for function in (fp8.grouped_mm, fp8.reference.grouped_mm):
        if function is fp8.reference.grouped_mm and wrong.get("a") is not None and wrong["a"].dtype == torch.float64:
            continue  # which its oracle needs
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            function(**arguments)
    with pytest.raises(ValueError, match=r"^backend: is 'cublas'; may be None or triton, grouped, loop, emulation"):
        fp8.grouped_mm(A, B_T, OFFS, backend="cublas")
