"""RMSNorm and rotary positions: against float64 at odd sizes, and what is special to them.

What every operator does around its numbers is in test_operators_behaviour.py, for RMSNorm too.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import operators
from kernels.fp8.inputs import far_apart
from kernels.launch import MAX_CANDIDATES
from kernels.layers.rope import rope_table
from kernels.operators import configs, reference
from tests.kernels.guards import no_device_waits, no_host_reads
from tests.kernels.operators import DTYPES, gradients
from tests.kernels.paths import KernelPath

WIDTHS = (2, 7, 16, 47, 48, 127, 129, 1000, 1408, 4097)


def error(got: Tensor, true: Tensor) -> float:
    return ((got.double() - true).norm() / true.norm().clamp_min(1e-30)).item()


def assert_nearly_right(found: list[Tensor], right: list[Tensor], eager: list[Tensor]) -> None:
    """To twice eager's error, in the norm, or a rounding of the dtype and some of fp32."""
    for got, true, other in zip(found, right, eager, strict=True):
        assert got.dtype == other.dtype
        rounding = torch.finfo(got.dtype).eps / 2 if got.dtype != torch.float32 else 4 * torch.finfo(got.dtype).eps
        assert error(got, true) <= max(2 * error(other, true), rounding)


# ---- RMSNorm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "offset"), list(zip(DTYPES, (0.0, 1.0, -0.5), strict=True)), ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_is_right(width: int, dtype: torch.dtype, offset: float, kernel_path: KernelPath) -> None:
    """Forward and both gradients, with more rows than a program of the backward pass has."""
    rows = 70 if width < 200 else 5
    x = (torch.randn(rows, width) * 3).to(kernel_path.device, dtype).requires_grad_()
    weight = torch.randn(width, device=kernel_path.device).requires_grad_()  # fp32, whatever x is
    upstream = torch.randn(rows, width).to(x)
    leaves = [each.detach().double().requires_grad_() for each in (x, weight)]
    right = gradients(lambda *t: reference.rms_norm(*t, 1e-5, offset=offset), tuple(leaves), upstream.double())
    eager, found = (
        gradients(lambda *t, f=f: f(*t, 1e-5, offset=offset), (x, weight), upstream)  # type: ignore[misc]
        for f in (reference.rms_norm, operators.rms_norm)
    )
    assert_nearly_right(found, right, eager)


def test_a_norm_without_a_weight(kernel_path: KernelPath) -> None:
    x = torch.randn(2, 3, 5, 24, device=kernel_path.device).transpose(1, 2).requires_grad_()  # does not collapse
    found, expected = (gradients(f, (x,)) for f in (operators.rms_norm, reference.rms_norm))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    ones = torch.ones(24, device=x.device)
    assert torch.equal(operators.rms_norm(x), operators.rms_norm(x, ones))
    assert torch.equal(operators.rms_norm(x), operators.rms_norm(x, ones * 0, offset=1))
    assert operators.rms_norm(x).is_contiguous()


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_a_frozen_side_of_a_norm_has_no_gradient(frozen: str, kernel_path: KernelPath) -> None:
    x, weight = (torch.randn(shape, device=kernel_path.device).requires_grad_() for shape in ((9, 20), (20,)))
    (x if frozen == "x" else weight).requires_grad_(False)
    found, expected = (gradients(f, (x, weight)) for f in (operators.rms_norm, reference.rms_norm))
    assert len(found) == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which multiplies in the interpreter
def test_a_norm_keeps_the_row_of_a_nan_apart(kernel_path: KernelPath) -> None:
    x = torch.randn(6, 40, device=kernel_path.device).bfloat16()
    x[2, 3], x[4, 0] = torch.nan, torch.inf
    out = operators.rms_norm(x, torch.ones(40, device=x.device))
    assert out[2].isnan().all()
    assert out[4, 0].isnan()
    assert (out[4, 1:] == 0).all()
    assert torch.equal(out[[0, 1, 3, 5]], operators.rms_norm(x[[0, 1, 3, 5]], torch.ones(40, device=x.device)))


def test_a_norm_of_one_column_is_its_sign(kernel_path: KernelPath) -> None:
    """Whose gradient is what cancellation leaves of 0."""
    x = torch.tensor([[3.0], [-0.5], [0.0], [1e-3]], device=kernel_path.device).requires_grad_()
    out, dx = gradients(partial(operators.rms_norm, eps=1e-12), (x,), torch.ones_like(x))
    torch.testing.assert_close(out.flatten().cpu(), torch.tensor([1.0, -1.0, 0.0, 1.0]))
    assert dx[[0, 1]].abs().max() < 1e-5


def test_a_row_of_zeros_is_zero(kernel_path: KernelPath) -> None:
    x = torch.zeros(3, 20, device=kernel_path.device).requires_grad_()
    out, dx = gradients(operators.rms_norm, (x,))
    assert not out.any()
    assert dx.isfinite().all()


def test_a_norm_saves_its_inputs_and_a_number_a_row(compiled_path: KernelPath) -> None:
    x, weight = (torch.randn(shape, device=compiled_path.device).requires_grad_() for shape in ((9, 20), (20,)))
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        operators.rms_norm(x, weight)
    assert [each.data_ptr() for each in packed[:2]] == [x.data_ptr(), weight.data_ptr()]
    assert [(tuple(each.shape), each.dtype) for each in packed[2:]] == [((9,), torch.float32)]


def test_the_sum_of_a_long_column_is_kept_in_float32(kernel_path: KernelPath) -> None:
    """1024 times 1 in bf16 ends at 256."""
    x = torch.ones(1024, 1, dtype=torch.bfloat16, device=kernel_path.device)
    weight = torch.ones(1, dtype=torch.bfloat16, device=x.device).requires_grad_()
    _, dweight = gradients(partial(operators.rms_norm, eps=0.0), (x, weight), torch.ones_like(x))
    assert dweight.item() == 1024


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(())}, "x: has no dimension; may have one or more"),
        ({"x": torch.zeros(2, 3, dtype=torch.float64)}, "x: is torch.float64; may be"),
        ({"weight": torch.zeros(4)}, "weight: has 4 elements; may have 3, one for each column of x"),
        ({"weight": torch.zeros(1, 3)}, "weight: has 2 dimensions"),
        ({"eps": -1.0}, "eps: is -1.0; may be 0 or more"),
    ],
)
def test_a_norm_refuses_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        operators.rms_norm(**{"x": torch.zeros(2, 3), "weight": torch.zeros(3), **given})


# ---- rotary positions ------------------------------------------------------------------------------------------------

INTERLEAVED = pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])


def turning(
    device: torch.device, dtype: torch.dtype = torch.float32, width: int = 22, pairs: int | None = None, heads: int = 3
) -> tuple[Tensor, Tensor]:
    """x (2, 7, heads, width) and the table of 7 positions from 1000 on."""
    x = torch.randn(2, 7, heads, width).to(device, dtype).requires_grad_()
    return x, rope_table(1007, 2 * (width // 2 if pairs is None else pairs), device=device)[1000:]


@INTERLEAVED
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "pairs"), [(2, 1), (3, 1), (22, 11), (64, 32), (90, 20), (129, 64), (16, 0)])
def test_turns_are_right(
    width: int, pairs: int, dtype: torch.dtype, interleaved: bool, kernel_path: KernelPath
) -> None:
    """As a product of complex numbers, in float64."""
    x, table = turning(kernel_path.device, dtype, width, pairs)
    upstream = torch.randn(x.shape).to(x)
    turn = torch.view_as_complex(table.double())[:, None]

    def product(x: Tensor) -> Tensor:
        turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :pairs], turned[..., pairs:])
        product = torch.complex(a, b) * turn
        parts = torch.stack((product.real, product.imag), -1 if interleaved else -2)
        return torch.cat((parts.flatten(-2), rest), -1)

    right = gradients(product, (x.detach().double().requires_grad_(),), upstream.double())
    eager, found = (
        gradients(lambda x, f=f: f(x, table, interleaved=interleaved), (x,), upstream)  # type: ignore[misc]
        for f in (reference.rope, operators.rope)
    )
    assert_nearly_right(found, right, eager)
    assert torch.equal(found[0][..., 2 * pairs :], x[..., 2 * pairs :])


@INTERLEAVED
def test_each_sequence_may_have_its_own_positions(interleaved: bool, kernel_path: KernelPath) -> None:
    x, table = turning(kernel_path.device)
    tables = torch.stack((table, table.flip(0)))
    got = operators.rope(x, tables, interleaved=interleaved)
    for one, each, own in zip(got, x, tables, strict=True):
        assert torch.equal(one, operators.rope(each[None], own, interleaved=interleaved)[0])


@INTERLEAVED
def test_any_strides_give_the_same_bits(interleaved: bool, triton_path: KernelPath) -> None:
    x, table = turning(triton_path.device, torch.bfloat16, 24, heads=5)
    upstream = torch.randn(x.shape).to(x)
    expected = gradients(partial(operators.rope, interleaved=interleaved), (x, table), upstream)
    views = (
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),  # heads first, as Hugging Face has them
        lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda t: torch.stack((t, t + 1), -1)[..., 0],
        lambda t: torch.cat((t, t), 2)[:, :, : t.shape[2]],
    )
    for view in views:
        leaf = view(x.detach()).requires_grad_()
        apart = torch.stack((table, table), 1)[:, 1]
        got = gradients(partial(operators.rope, interleaved=interleaved), (leaf, apart), view(upstream))
        assert all(map(torch.equal, got, expected))
        assert got[0].is_contiguous()


@INTERLEAVED
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_strides_past_two_to_the_31(dim: int, interleaved: bool, triton_path: KernelPath) -> None:
    if triton_path.name == "triton":
        pytest.skip("needs 32 GiB of memory that nothing backs, which a CPU has")
    x, table = turning(triton_path.device, torch.bfloat16, 6)
    rows = x.detach().movedim(dim, 0).flatten(1)
    far = far_apart(rows, dim=0, stride=2**31 // (len(rows) - 1)).unflatten(1, x.movedim(dim, 0).shape[1:])
    got = operators.rope(far.movedim(0, dim), table, interleaved=interleaved)
    assert torch.equal(got, operators.rope(x, table, interleaved=interleaved))


@INTERLEAVED
def test_every_way_to_turn_gives_the_same_bits(interleaved: bool, triton_path: KernelPath) -> None:
    x, table = turning(triton_path.device, heads=9)
    rope = partial(operators.rope, interleaved=interleaved)
    expected = gradients(rope, (x, table))
    count = len(configs.rope_candidates("cpu" if x.device.type == "cpu" else "", 9, 11))
    assert 2 <= count <= MAX_CANDIDATES
    for number in range(count):
        assert all(map(torch.equal, gradients(partial(rope, candidate=number), (x, table)), expected))
    with pytest.raises(ValueError, match=rf"^candidate: is {count}; may be 0 to {count - 1} here$"):
        rope(x, table, candidate=count)


def test_turns_read_nothing_and_save_the_table(triton_path: KernelPath) -> None:
    x, table = turning(triton_path.device)
    operators.rope(x, table)
    packed: list[Tensor] = []
    with no_host_reads(), no_device_waits():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            out = operators.rope(x, table)
        torch.autograd.grad(out, x, torch.ones_like(out))
    assert [each.data_ptr() for each in packed] == [table.data_ptr()]


def test_a_turn_is_registered(compiled_path: KernelPath) -> None:
    x, table = turning(compiled_path.device)
    for how in ((True, False), (False, True)):
        torch.library.opcheck(torch.ops.perfguard_kernels.rope.default, (x, table, *how, None))
    given = x.detach().transpose(1, 2), rope_table(3, 22, device=x.device)
    with FakeTensorMode() as mode:
        fake = operators.rope(*map(mode.from_tensor, given))
    assert (fake.shape, fake.stride()) == ((2, 3, 7, 22), (462, 154, 22, 1))
    compiled = torch.compile(operators.rope, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradients(compiled, (x, table)), gradients(operators.rope, (x, table)), strict=True):
        assert torch.equal(one, other)


def test_a_turn_of_a_turn_is_differentiable(kernel_path: KernelPath) -> None:
    x, table = turning(kernel_path.device)
    (gradient,) = torch.autograd.grad(operators.rope(x, table).square().sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, 2 * x)  # a turn keeps lengths
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    torch.testing.assert_close(second, 8 * x)


@pytest.mark.parametrize("shape", [(0, 7, 3, 22), (2, 0, 3, 22), (2, 7, 0, 22), (2, 7, 3, 0)])
def test_nothing_is_turned_to_nothing(shape: tuple[int, ...], kernel_path: KernelPath) -> None:
    x = torch.zeros(shape, device=kernel_path.device).requires_grad_()
    out, dx = gradients(operators.rope, (x, rope_table(shape[1], shape[3], device=x.device)))
    assert out.shape == dx.shape == shape


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(2, 3, 4)}, "x: has 3 dimensions, shape (2, 3, 4); may have 4"),
        (
            {"table": torch.zeros(3, 2, 2)},
            "table: has shape (3, 2, 2); may have (5, P, 2) or (2, 5, P, 2) with 2 P of 6",
        ),
        ({"table": torch.zeros(5, 4, 2)}, "table: has shape (5, 4, 2)"),
        ({"table": torch.zeros(5, 6)}, "table: has shape (5, 6)"),
        ({"table": torch.zeros(3, 5, 2, 2)}, "table: is for 3 sequences; may be for 2, as many as x has"),
        ({"table": torch.zeros(5, 3, 2).requires_grad_()}, "table: requires a gradient, which there is none of"),
    ],
)
def test_turns_refuse_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        operators.rope(**{"x": torch.zeros(2, 5, 1, 6), "table": torch.zeros(5, 3, 2), **given})
