"""What every memory-saving operator does around its numbers, and its numbers over layouts, widths and dtypes.

What is special to one of them is in its own file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import block_scaled, fp8, grouped, operators
from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS, far_apart
from kernels.launch import MAX_CANDIDATES
from kernels.moe import MoE, MoEConfig
from kernels.operators import configs
from tests.kernels.guards import guarded_allocations, no_device_waits, no_host_reads
from tests.kernels.operators import (
    DTYPES,
    OPERATORS,
    ROWS,
    TWO_ROUNDINGS,
    WIDTH,
    Operator,
    first_tensor,
    gradients,
    group_ends,
    name,
    unchecked_indices,
)
from tests.kernels.paths import GPU, KernelPath, every_candidate
from tests.kernels.vocabulary import vocab_parallel_cross_entropy

EVERY = pytest.mark.parametrize("operator", OPERATORS, ids=name)


def guard(perfguard: Any, operator: Operator, arguments: tuple[Any, ...]) -> None:
    """The project's rule, forward and backward, with its poison, its second call and its layouts of gradients."""
    tolerance = TWO_ROUNDINGS if operator.name == "cross_entropy" else None
    perfguard(operator.function, *arguments, reference=operator.reference, tolerance=tolerance)


# ---------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@EVERY
def test_dtypes(perfguard: Any, operator: Operator, dtype: torch.dtype, kernel_path: KernelPath) -> None:
    guard(perfguard, operator, operator.arguments(kernel_path.device, dtype))


SUMMED = ("cross_entropy", "rms_norm")  # along rows
# In two dimensions the innermost batch is column-major again, and a slice of rows has only another row stride.
SKIPPED = ("row-major", "batch-innermost", "every-second-row")


@pytest.mark.parametrize("layout", [layout for layout in (*LAYOUTS, *SHARING_LAYOUTS) if layout not in SKIPPED])
@EVERY
def test_layouts(operator: Operator, layout: str, triton_path: KernelPath) -> None:
    """Strides of inputs and of incoming gradients: the same bits as from contiguous ones.

    Cross entropy and RMSNorm add in an order that follows a row's strides: sums may be a few roundings of fp32 apart.
    """
    place = LAYOUTS.get(layout) or SHARING_LAYOUTS[layout]
    arguments = operator.arguments(triton_path.device, layout=place)
    plain = tuple(
        value.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value in arguments
    )
    result = first_tensor(operator.function(*plain))
    upstream = torch.randn(result.shape).to(result)
    if result.ndim == 2:
        upstream = place(upstream)
    got = gradients(operator.function, arguments, upstream)
    for one, other in zip(got, gradients(operator.function, plain, upstream.contiguous()), strict=True):
        if operator.name in SUMMED:
            rounding = max(torch.finfo(one.dtype).eps, 4 * torch.finfo(torch.float32).eps)
            torch.testing.assert_close(one, other, rtol=rounding, atol=0 if operator.name == "cross_entropy" else 1e-6)
        else:
            assert torch.equal(one, other), layout
    for one, other in zip(got, gradients(operator.reference, plain, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("width", [2, 14, 46, 1408])
@EVERY
def test_widths(operator: Operator, width: int, triton_path: KernelPath) -> None:
    """Below, at and beside every block; nothing is written past the end of a row or of a buffer."""
    arguments = operator.arguments(triton_path.device, rows=5, width=width)
    with guarded_allocations("nan"):
        got = gradients(operator.function, arguments)
    for one, other in zip(got, gradients(operator.reference, arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-5)


@EVERY
def test_no_rows(operator: Operator, kernel_path: KernelPath) -> None:
    got = gradients(operator.function, operator.arguments(kernel_path.device, rows=0))
    expected = gradients(operator.reference, operator.arguments(kernel_path.device, rows=0))
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)
        assert not one.any()


# Indices along the dimension, and how far apart.
FAR = [(3, 2**30), (16, 2**28), (16, 2**31)]


@pytest.mark.parametrize("dim", [0, 1])
@EVERY
def test_offsets_past_two_to_the_31(operator: Operator, dim: int, triton_path: KernelPath) -> None:
    """No product of index and stride may be taken in 32 bits, of inputs or of incoming gradients."""
    for length, stride in FAR:
        needed_gib = 4 * 2 * max(2**32, length * stride) >> 30
        if GPU == "cuda" and torch.cuda.mem_get_info()[0] >> 30 < needed_gib + 2:
            pytest.skip(f"needs {needed_gib} GiB of free device memory: a GPU backs every page of the buffer")
        sizes = {"rows": length, "width": 6} if dim == 0 else {"rows": 5, "width": length // 2 * 2}
        place = partial(far_apart, dim=dim, stride=stride)
        plain = operator.arguments(triton_path.device, **sizes)
        arguments = tuple(
            place(value.detach()).requires_grad_()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 1 and value.shape[dim] > 1
            else value
            for value in plain
        )
        result = first_tensor(operator.function(*plain))
        upstream = torch.randn(result.shape).to(result)
        far_upstream = place(upstream) if result.ndim == 2 and dim == 1 else upstream
        got = gradients(operator.function, arguments, far_upstream)
        for one, other in zip(got, gradients(operator.function, plain, upstream), strict=True):
            assert torch.equal(one, other), f"{length} indices, {stride} apart"


# ---------------------------------------------------------------------------------------------------
# Configurations


@EVERY
def test_every_candidate(operator: Operator, triton_path: KernelPath) -> None:
    """The default's bits, but for sums, whose order is the candidate's; the number past the last one is refused."""
    arguments = operator.arguments(triton_path.device, torch.float32, rows=70, width=70)
    expected = gradients(operator.function, arguments)

    def found(number: int) -> list[torch.Tensor]:
        return gradients(partial(operator.function, candidate=number), arguments)

    for number, got in every_candidate(found):
        for one, other in zip(got, expected, strict=True):
            if operator.is_elementwise:
                assert torch.equal(one, other), f"candidate {number}"
            torch.testing.assert_close(one, other, rtol=1e-5, atol=5e-6 if operator.name in SUMMED else 1e-6)


POWERS_OF_TWO = (
    "rows", "columns", "lanes", "depth", "part", "slots", "long", "part_depth", "part_rows", "part_columns",
)  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "gfx942", "cpu"])
def test_tables_obey_the_hardware(arch: str) -> None:
    """At most four candidates, powers of two, no more threads than a block may have."""
    from kernels.hardware import hardware_of

    layouts: tuple[configs.Layout, ...] = ("unit", "strided")
    for width, layout in itertools.product((1, 47, 2048, 5760, 202048), layouts):
        tables: list[Any] = [
            configs.tile_candidates(arch, width, layout, flat=False),
            configs.tile_candidates(arch, width, layout, flat=True),
            configs.norm_candidates(arch, width),
            configs.rope_candidates(arch, 32, width),
            configs.row_candidates(arch, width, layout, reused=False),
            configs.row_candidates(arch, width, layout, reused=True),
            configs.sum_candidates(arch, width),
            configs.list_candidates(arch, width),
            configs.cross_entropy_candidates(arch, plain=True),
            configs.cross_entropy_candidates(arch, plain=False),
            configs.scale_candidates(arch),
        ]
        for table in tables:
            assert 2 <= len(table) <= MAX_CANDIDATES
            for config in table:
                most = hardware_of(arch).max_warps
                assert most is None or config.warps <= most, config
                sizes = [getattr(config, field, 1) or 1 for field in POWERS_OF_TWO]
                assert all(size & (size - 1) == 0 for size in sizes), config


# ---------------------------------------------------------------------------------------------------
# Registration


@EVERY
def test_opcheck(operator: Operator, compiled_path: KernelPath) -> None:
    """Schema, fake and autograd registration, and the same traced with symbolic sizes."""
    arguments = operator.raw_arguments(operator.arguments(compiled_path.device, torch.float32))
    torch.library.opcheck(getattr(torch.ops.perfguard_kernels, operator.raw).default, arguments)


def _others(device: torch.device) -> dict[str, tuple[Any, ...]]:
    """The operators without an autograd formula."""
    x, index = torch.randn(6, 8, device=device), torch.tensor([3, 0, 3, 5], device=device)
    target, kept = torch.tensor([1, 7, -100, 0, 2, 2], device=device), torch.tensor(5, device=device)
    offs = torch.tensor([2, 2, 5], dtype=torch.int32, device=device)
    return {
        "silu_mul_backward": (x, x + 1, x + 2, None),
        "clamped_swiglu_backward": (x[:, :4], x, 1.7, 1.0, None),
        "rms_norm_backward": (x, x + 1, x[0], x[:, 0].contiguous(), 0.5, True, None),
        "cross_entropy_kept": (target, -100),
        "cross_entropy_losses": (x, target, kept, -100, None),
        "cross_entropy_ratio": (target, x[0], kept, -100),
        "cross_entropy_total": (x[:, 0].contiguous(), kept),
        "cross_entropy_gradient": (x, target, None, -100, None),
        "cross_entropy_gradient_": (x, target, kept, -100, None),
        "cross_entropy_scaled": (x, torch.tensor(2.0, device=device), None),
        "cross_entropy_scale_": (x, torch.tensor(2.0, device=device), None),
        "padded_index_gather_backward": (x[:4], index, 6, None),
        "scatter_places": (index, 6, 4, 22),
        "moe_plan": (index.view(2, 2), 6),
        "scatter_for_grouped_gemm_backward": (x, index, None),
        "indexed_bias_add_backward": (x, offs, torch.bfloat16, None),
    }


@pytest.mark.parametrize("raw", list(_others(torch.device("cpu"))))
def test_opcheck_of_what_is_called_inside(raw: str, compiled_path: KernelPath) -> None:
    torch.library.opcheck(getattr(torch.ops.perfguard_kernels, raw).default, _others(compiled_path.device)[raw])


@EVERY
def test_fake_results_have_the_real_form(operator: Operator, triton_path: KernelPath) -> None:
    arguments = operator.arguments(triton_path.device, layout=LAYOUTS["column-major"])
    real = first_tensor(operator.function(*arguments))
    with FakeTensorMode() as mode:
        faked = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        fake = first_tensor(operator.function(*faked))
    assert (fake.dtype, fake.shape, fake.stride()) == (real.dtype, real.shape, real.stride())


@EVERY
def test_compiles_as_one_graph(operator: Operator, compiled_path: KernelPath) -> None:
    """Forward and backward, over several counts of rows without a second compilation of either."""
    torch._dynamo.reset()
    compiled = torch.compile(operator.function, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (ROWS, 7, 40):
        arguments = operator.arguments(compiled_path.device, rows=rows)
        with torch.compiler.set_stance("default" if rows == ROWS else "fail_on_recompile"):
            got = gradients(compiled, arguments)
        for one, other in zip(got, gradients(operator.function, arguments), strict=True):
            assert torch.equal(one, other)


# ---------------------------------------------------------------------------------------------------
# Memory and host


@EVERY
def test_saves_what_it_says(operator: Operator, kernel_path: KernelPath) -> None:
    """Exactly these tensors, by storage, and none besides."""
    if operator.name in SUMMED:
        pytest.skip("saves a tensor of its own, which test_norms.py and test_cross_entropy.py look at")
    arguments = operator.arguments(kernel_path.device)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        result = operator.function(*arguments)
    expected = operator.saved(arguments, result)
    assert len(packed) == len(expected)
    pointers = [{tensor.untyped_storage().data_ptr() for tensor in tensors} for tensors in (packed, expected)]
    assert pointers[0] == pointers[1]


@EVERY
def test_the_host_reads_no_data(operator: Operator, triton_path: KernelPath) -> None:
    """Forward and backward. Indices on a CPU are checked there, which costs no wait; this is left out here."""
    arguments = operator.arguments(triton_path.device)
    upstream = torch.randn_like(first_tensor(operator.function(*arguments)).detach())
    gradients(operator.function, arguments, upstream)  # compilation may read what it likes
    with unchecked_indices(), no_host_reads(), no_device_waits():
        gradients(operator.function, arguments, upstream)


@EVERY
def test_captured_in_a_graph(operator: Operator, gpu: torch.device) -> None:
    if gpu.type != "cuda":
        pytest.skip("needs CUDA graphs: this device is no CUDA or HIP device")
    arguments = operator.arguments(gpu)
    # Detached: what a graph of autograd's keeps of the default stream would be waited for inside the capture.
    upstream = torch.randn_like(first_tensor(operator.function(*arguments)).detach())
    expected = gradients(operator.function, arguments, upstream)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(operator.function, arguments, upstream)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gradients(operator.function, arguments, upstream)
    for tensor in got:
        if tensor.data_ptr() != upstream.data_ptr():  # a gradient that is the incoming one is nobody's to write
            tensor.fill_(torch.nan)
    graph.replay()
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


# ---------------------------------------------------------------------------------------------------
# Autocast, and gradients of gradients: all that has a backward pass of its own


def differentiables(device: torch.device) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Calls in fp32, of which a lower precision inside would show."""

    def floats(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]

    offs, target = group_ends(17)[0].to(device), torch.tensor([3, 0, -100, 21, 7] * 3, device=device)
    store = operators.WeightGradStore()
    linear = operators.GroupedLinear(4, 24, 16, store=store, device=device)
    layers = {
        f"MoE-{precision}-{recompute}": MoE(
            MoEConfig(dim=16, hidden=32, experts=4, top_k=2),
            precision=precision,
            recompute=recompute,
            device=device,
        )
        for precision, recompute in (("bf16", True), ("bf16", False), ("fp8", False))
    }
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        each.name: (each.function, each.arguments(device, torch.float32)) for each in OPERATORS
    }
    for reduction in ("mean", "none"):
        function = partial(operators.linear_cross_entropy, reduction=reduction)
        calls[f"linear_cross_entropy-{reduction}"] = function, (*floats((15, 8), (22, 8)), target)
    calls |= {
        "grouped_mm-rows": (grouped.grouped_mm, (*floats((19, 24), (4, 24, 16)), offs)),
        "grouped_mm-groups": (grouped.grouped_mm, (*floats((24, 19), (19, 16)), offs)),
        "fp8.grouped_mm": (fp8.grouped_mm, (*floats((19, 32), (4, 32, 16)), offs)),
        "block_scaled.grouped_mm": (block_scaled.grouped_mm, (*floats((19, 32), (4, 32, 16)), offs)),
        "block_scaled.grouped_mm-mx": (
            partial(block_scaled.grouped_mm, scaling="mx"),
            (*floats((19, 32), (4, 32, 16)), offs),
        ),
        "permute_and_pad": (
            lambda x, offs: block_scaled.permute_and_pad(x, torch.diff(offs, prepend=offs.new_zeros(1)), 16).rows,
            (*floats((19, 24)), offs),
        ),
        "vocab_parallel_cross_entropy": (vocab_parallel_cross_entropy, (*floats((15, 22)), target)),
        "GroupedLinear": (lambda x, _: linear(x, offs), (*floats((19, 24)), linear.weight)),
        "rope": (operators.rope, (*floats((2, 5, 3, 8)), torch.randn(5, 4, 2, device=device))),
    }
    for call, layer in layers.items():
        calls[call] = lambda x, *_, layer=layer: layer(x), (*floats((12, 16)), *layer.parameters())
    return calls


LAYERS = ("linear_cross_entropy", "GroupedLinear")  # which autocast reaches, as it does `torch.nn.Linear`
CALLS = pytest.mark.parametrize("call", list(differentiables(torch.device("cpu"))))


@pytest.mark.parametrize("inside", ["forward", "backward", "both"])
@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16], ids=str)
@CALLS
def test_autocast_stays_outside(call: str, lower: torch.dtype, inside: str, compiled_path: KernelPath) -> None:
    """What an operator calls of torch counts in its own precision: the bits and dtypes of a call without autocast."""
    if call.startswith(LAYERS) and inside != "backward":
        pytest.skip("its layer is computed in autocast's dtype, as torch's is: the next test")
    device = compiled_path.device
    function, arguments = differentiables(device)[call]
    leaves = [value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad]
    plain = first_tensor(function(*arguments))
    upstream = torch.randn(plain.shape, device=device).to(plain.dtype)
    expected = [plain, *torch.autograd.grad(plain, leaves, upstream)]
    with torch.autocast(device.type, lower, enabled=inside != "backward"):
        result = first_tensor(function(*arguments))
    with torch.autocast(device.type, lower, enabled=inside != "forward"):
        got = [result, *torch.autograd.grad(result, leaves, upstream)]
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("call", [call for call in differentiables(torch.device("cpu")) if call.startswith(LAYERS)])
def test_a_linear_layer_takes_the_dtype_of_autocast(call: str, lower: torch.dtype, compiled_path: KernelPath) -> None:
    """The bits of a call with cast tensors, and gradients in the dtypes of what was given."""
    device = compiled_path.device
    function, arguments = differentiables(device)[call]
    leaves = [value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad]
    with torch.autocast(device.type, lower):
        result = function(*arguments)
        upstream = torch.randn(result.shape, device=device).to(result.dtype)
        got = [result, *torch.autograd.grad(result, leaves, upstream)]
    if call == "GroupedLinear":
        taken = [leaf.detach().to(lower).requires_grad_() for leaf in leaves]
        plain = grouped.grouped_mm(taken[0], taken[1].mT, group_ends(17)[0].to(device))
    else:
        taken = [leaf.detach().to(lower).requires_grad_() for leaf in leaves]
        plain = function(*taken, *arguments[len(leaves) :])
    assert result.dtype == (lower if call == "GroupedLinear" else torch.float32)
    for one, other in zip(got, [plain, *torch.autograd.grad(plain, taken, upstream)], strict=True):
        assert one.dtype == (other.dtype if one is result else torch.float32)
        assert torch.equal(one, other.to(one.dtype))


@EVERY
def test_integers_may_be_narrow(operator: Operator, kernel_path: KernelPath) -> None:
    """int32 is what a router or a data loader may have: the same bits, and results in the same dtypes."""
    arguments = operator.arguments(kernel_path.device)
    integers = [value for value in arguments if isinstance(value, torch.Tensor) and not value.is_floating_point()]
    if not integers:
        pytest.skip("takes no integers")
    narrow = tuple(value.int() if any(value is each for each in integers) else value for value in arguments)
    for one, other in zip(gradients(operator.function, narrow), gradients(operator.function, arguments), strict=True):
        assert torch.equal(one, other)
    results = [operator.function(*each) for each in (narrow, arguments)]
    if isinstance(results[0], tuple):
        for one, other in zip(*results, strict=True):
            assert one is other is None or (one.dtype == other.dtype and torch.equal(one, other))
    for one, other in zip(gradients(operator.reference, narrow), gradients(operator.reference, arguments), strict=True):
        assert torch.equal(one, other)


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.Tensor.sum,  # whose gradient is a constant
    "of-squares": lambda result: result.square().sum(),
}


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("frozen", [False, True])
@CALLS
def test_a_second_derivative_is_right_or_refused(call: str, frozen: bool, loss: str, compiled_path: KernelPath) -> None:
    """Never left out in silence, also where nothing but the first argument needs a gradient."""
    function, arguments = differentiables(compiled_path.device)[call]
    if frozen:
        for value in arguments[1:]:
            if isinstance(value, torch.Tensor):
                value.requires_grad_(False)
    leaf = arguments[0]

    def penalty(x: torch.Tensor, create_graph: bool) -> torch.Tensor:
        result = first_tensor(function(x, *arguments[1:])).float()
        (gradient,) = torch.autograd.grad(LOSSES[loss](result), x, create_graph=create_graph)
        return gradient.square().sum()

    try:
        squares = penalty(leaf, create_graph=True)
        got = torch.zeros_like(leaf)
        if squares.requires_grad:
            (got,) = torch.autograd.grad(squares, leaf, materialize_grads=True)
    except RuntimeError as error:
        assert re.search("create_graph=True|no autograd formula was registered", str(error)), error  # noqa: PT017
        return
    step = 1e-2 * torch.randn(leaf.shape, device=leaf.device)
    sides = [penalty((leaf + by).detach().requires_grad_(), create_graph=False) for by in (step, -step)]
    measured = (sides[0] - sides[1]).item() / 2
    assert (got * step).sum().item() == pytest.approx(measured, rel=0.05, abs=1e-5 * sides[0].item())


def test_the_width_has_tails_against_every_block() -> None:
    """The default inputs would prove little if a block fitted them."""
    assert ROWS % 2
    assert WIDTH & (WIDTH - 1)
    assert operators.path("cpu") in ("eager", "interpreter")
