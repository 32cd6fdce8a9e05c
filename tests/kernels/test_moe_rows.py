"""The layer's own kernels against torch's operators on the same inputs: the same bits, wherever no dot product is.

What they compute is written out here once more, by indexing; what happens around them, autograd and the layer, is in
test_moe_dispatch.py and test_moe_layer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS, far_apart
from kernels.hardware import hardware_of
from kernels.launch import MAX_CANDIDATES
from kernels.moe import configs, rows
from kernels.moe.rows import spread_rows, spread_rows_and_dot, sum_rows, sum_rows_and_dot
from kernels.moe.weighted_gate import weighted_gate_backward
from tests.kernels import elsewhere
from tests.kernels.guards import no_device_waits, no_host_reads
from tests.kernels.operators import DTYPES
from tests.kernels.paths import GPU, KernelPath, every_candidate, open_path
from tests.nursery import Nursery

TOKENS = 9
WIDTH = 70  # a tail against every block


@dataclass
class Moved:
    """What can be moved, and where it goes."""

    x: Tensor  # (T, D)
    y: Tensor  # (T * K, D)
    plus: Tensor  # (T * K, D)
    weights: Tensor  # (T, K)
    inverse: Tensor  # (T, K)

    def results(self, candidate: int | None = None) -> dict[str, Tensor]:
        """Of each way through the kernels; in those called "dot…" products are summed."""
        weights, inverse, chosen = self.weights, self.inverse, {"candidate": candidate}
        spread, dots = spread_rows_and_dot(self.x, weights, inverse, self.y, **chosen)
        total, total_dots = sum_rows_and_dot(self.y, weights, inverse, self.x, plus_MD=self.plus, **chosen)
        return {
            "spread": spread_rows(self.x, None, inverse, **chosen),
            "spread, cast": spread_rows(self.x, None, inverse, torch.bfloat16, **chosen),
            "spread, weighted": spread_rows(self.x, weights, inverse, **chosen),
            "spread beside dots": spread,
            "dots beside spread": dots,
            "sum": sum_rows(self.y, None, inverse, **chosen),
            "sum, weighted, cast": sum_rows(self.y, weights, inverse, torch.float32, **chosen),
            "sum of two": sum_rows(self.y, None, inverse, plus_MD=self.plus, **chosen),
            "sum beside dots": total,
            "dots beside sum": total_dots,
        }

    def expected(self) -> dict[str, Tensor]:
        """The same by indexing (T, K, D) in float32."""
        x, y = self.x.float(), self.y.float()[self.inverse]
        both, weights, dtype = y + self.plus.float()[self.inverse], self.weights.unsqueeze(-1), self.x.dtype

        def rows_of(value: Tensor) -> Tensor:
            to = torch.empty_like(self.y, memory_format=torch.contiguous_format)
            to[self.inverse.flatten()] = value.to(dtype).flatten(0, 1)
            return to

        def added(value: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            total = torch.zeros_like(x)
            for choice in value.unbind(1):
                total = total + choice
            return total.to(dtype)

        plain, weighted = rows_of(x.unsqueeze(1).expand_as(y)), rows_of(x.unsqueeze(1) * weights)
        return {
            "spread": plain,
            "spread, cast": plain.to(torch.bfloat16),
            "spread, weighted": weighted,
            "spread beside dots": weighted,
            "dots beside spread": (x.unsqueeze(1) * y).sum(-1),
            "sum": added(y),
            "sum, weighted, cast": added(y * weights, torch.float32),
            "sum of two": added(both),
            "sum beside dots": added(both * weights),
            "dots beside sum": (x.unsqueeze(1) * both).sum(-1),
        }


def moved(
    device: torch.device, dtype: torch.dtype = torch.bfloat16, tokens: int = TOKENS, width: int = WIDTH, top_k: int = 3
) -> Moved:
    count = tokens * top_k
    drawn = [torch.randn(size, width).to(device, dtype) for size in (tokens, count, count)]
    inverse = torch.randperm(count).view(tokens, top_k)
    return Moved(*drawn, torch.rand(tokens, top_k).to(device), inverse.to(device))


def require_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        if name.startswith("dot"):
            torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
        else:
            assert torch.equal(got[name], value), name


@pytest.mark.parametrize("top_k", [1, 3, 8])  # one row; no power of two; the most that the models have
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves(dtype: torch.dtype, top_k: int, kernel_path: KernelPath) -> None:
    inputs = moved(kernel_path.device, dtype, top_k=top_k)
    assert rows.path(kernel_path.device, dtype) == kernel_path.name
    require_equal(inputs.results(), inputs.expected())


@pytest.mark.parametrize(("tokens", "width"), [(0, 16), (1, 1), (1, 1100), (5, 64)], ids=str)
def test_sizes(tokens: int, width: int, kernel_path: KernelPath) -> None:
    """None and few; one column, two blocks of them, a block that fits."""
    inputs = moved(kernel_path.device, tokens=tokens, width=width)
    require_equal(inputs.results(), inputs.expected())


@pytest.mark.parametrize("layout", [*LAYOUTS, *SHARING_LAYOUTS])
def test_layouts(layout: str, triton_path: KernelPath) -> None:
    place = LAYOUTS.get(layout) or SHARING_LAYOUTS[layout]
    inputs = moved(triton_path.device, tokens=5)
    inputs.x, inputs.y, inputs.plus = (place(each) for each in (inputs.x, inputs.y, inputs.plus))
    require_equal(inputs.results(), inputs.expected())


@pytest.mark.parametrize("dim", [0, 1])
def test_offsets_past_two_to_the_31(dim: int, triton_path: KernelPath) -> None:
    """No product of a row or a column and its stride may be taken in 32 bits."""
    length, stride = 3, 2**30
    if GPU == "cuda" and torch.cuda.mem_get_info()[0] >> 30 < 50:
        pytest.skip("needs 50 GiB of free device memory: a GPU backs every page of the buffers")
    sizes = {"tokens": length, "width": 6} if dim == 0 else {"tokens": 2, "width": length}
    inputs = moved(triton_path.device, top_k=1, **sizes)
    expected = inputs.expected()
    place = partial(far_apart, dim=dim, stride=stride)
    inputs.x, inputs.y, inputs.plus = (place(each) for each in (inputs.x, inputs.y, inputs.plus))
    require_equal(inputs.results(), expected)
    q, gate, up, *rest = gate_inputs(triton_path.device, *sizes.values(), 1)
    near = weighted_gate_backward(q, gate, up, *rest)
    far = weighted_gate_backward(place(q), place(gate), place(up), *rest)
    assert all(torch.equal(one, other) for one, other in zip(far, near, strict=True))


def test_a_move_keeps_every_bit(kernel_path: KernelPath) -> None:
    """Payloads of NaN as well, where nothing is counted."""
    bits = torch.randint(-(2**15), 2**15, (TOKENS, WIDTH), dtype=torch.int16, device=kernel_path.device)
    inverse = moved(kernel_path.device).inverse
    got = spread_rows(bits.view(torch.bfloat16), None, inverse).view(torch.int16)
    assert torch.equal(got[inverse], bits.unsqueeze(1).expand(-1, 3, -1))


def test_weights_in_float64_leave_the_oracle_its_precision(kernel_path: KernelPath) -> None:
    """The oracle's dtype takes torch's operators on every device."""
    inputs = moved(kernel_path.device, torch.float64)
    inputs.weights = inputs.weights.double()
    assert rows.path(kernel_path.device, torch.float64) == "eager"
    _, dots = spread_rows_and_dot(inputs.x, inputs.weights, inputs.inverse, inputs.y)
    torch.testing.assert_close(dots, (inputs.x.unsqueeze(1) * inputs.y[inputs.inverse]).sum(-1), rtol=1e-12, atol=0)
    total = sum_rows(inputs.y, inputs.weights, inputs.inverse)
    expected = (inputs.y[inputs.inverse] * inputs.weights.unsqueeze(-1)).sum(1)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-14)


# ---- the gate ------------------------------------------------------------------------------------------------------


def gate_inputs(device: torch.device, count: int, width: int, top_k: int) -> tuple[Tensor, ...]:
    q, gate, up = torch.randn(3, count * top_k, width).to(device, torch.bfloat16)
    inverse = torch.randperm(count * top_k).view(count, top_k).to(device)
    return q, gate, up, torch.rand(count, top_k).to(device), inverse


@pytest.mark.parametrize("sizes", [(0, 8, 2), (1, 1, 1), (7, 45, 3), (3, 600, 2)], ids=str)
def test_the_gate_against_autograd_in_float64(sizes: tuple[int, int, int], kernel_path: KernelPath) -> None:
    """None; one element; tails of rows and columns; more than a block of columns. To one rounding of each result."""
    q, gate, up, weights, inverse = gate_inputs(kernel_path.device, *sizes)
    g, u, w = (each.double().requires_grad_() for each in (gate, up, weights))
    row_weights = torch.empty(len(q), 1, dtype=torch.float64, device=q.device)
    row_weights = row_weights.index_copy(0, inverse.flatten(), w.view(-1, 1))
    hidden = torch.nn.functional.silu(g) * u
    dg, du, dw = torch.autograd.grad((hidden * row_weights * q.double()).sum(), (g, u, w))
    got = weighted_gate_backward(q, gate, up, weights, inverse)
    for one, other in zip(got[:3], ((hidden * row_weights).detach(), dg, du), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2**-8, atol=1e-6)
    assert got[3].dtype == torch.float32
    torch.testing.assert_close(got[3].double(), dw, rtol=1e-5, atol=1e-5)


def test_the_gate_takes_any_strides(triton_path: KernelPath) -> None:
    q, gate, up, weights, inverse = gate_inputs(triton_path.device, 7, 45, 3)
    expected = weighted_gate_backward(q, gate, up, weights, inverse)
    wide = torch.zeros(21, 90, device=q.device, dtype=q.dtype)
    wide[:, ::2] = up
    got = weighted_gate_backward(q.t().contiguous().t(), gate.repeat(2, 1)[:21], wide[:, ::2], weights, inverse)
    assert all(torch.equal(one, other) for one, other in zip(got[:3], expected[:3], strict=True))
    # The compiler deals columns to threads by the strides, and so orders the sums of a dot product.
    torch.testing.assert_close(got[3], expected[3], rtol=1e-5, atol=1e-5)


# ---- what holds for all --------------------------------------------------------------------------------------------


def every_result(inputs: Moved, gate: tuple[Tensor, ...], candidate: int | None = None) -> dict[str, Tensor]:
    names = ("gate, weighted", "gate, dg", "gate, du", "dots of the gate")
    gated = weighted_gate_backward(*gate, candidate=candidate)
    return inputs.results(candidate) | dict(zip(names, gated, strict=True))


def test_every_candidate(triton_path: KernelPath) -> None:
    inputs, gate = moved(triton_path.device, tokens=4), gate_inputs(triton_path.device, 4, 40, 3)
    expected = every_result(inputs, gate)
    for _, got in every_candidate(lambda candidate: every_result(inputs, gate, candidate)):
        require_equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gate_s_backward_pass_writes_into_nothing_given(dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """Of fp32 a copy in fp32 is the tensor itself."""
    given = [torch.randn(6, 8).to(kernel_path.device, dtype) for _ in range(3)]
    given += [torch.rand(3, 2).to(given[0].device), torch.randperm(6).view(3, 2).to(given[0].device)]
    before = [each.clone() for each in given]
    weighted_gate_backward(*given)
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "gfx942", "cpu"])
def test_tables_obey_the_hardware(arch: str) -> None:
    most = hardware_of(arch).max_warps
    for width in (1, 768, 2048, 7168):
        for table in (configs.move_candidates(arch, width), configs.gate_candidates(arch, width)):
            assert 2 <= len(table) <= MAX_CANDIDATES
            for config in table:
                assert most is None or config.warps <= most, config
                assert all(size & (size - 1) == 0 for size in (config.rows, config.columns, config.warps)), config


def test_the_host_reads_no_data(triton_path: KernelPath) -> None:
    inputs, gate = moved(triton_path.device, tokens=2), gate_inputs(triton_path.device, 2, 40, 3)
    every_result(inputs, gate)  # compilation may read what it likes
    with no_host_reads(), no_device_waits():
        every_result(inputs, gate)


def test_well_made_operators_with_fakes_of_the_real_form(compiled_path: KernelPath) -> None:
    inputs, gate = moved(compiled_path.device), gate_inputs(compiled_path.device, 4, 40, 3)
    x, y, plus, weights, inverse = inputs.x, inputs.y, inputs.plus, inputs.weights, inputs.inverse
    raw: dict[str, tuple[Any, ...]] = {
        "moe_spread_rows": (x, weights, inverse, torch.float32, None),
        "moe_spread_rows_and_dot": (x, weights, inverse, y, None),
        "moe_sum_rows": (y, plus, weights, inverse, torch.float32, None),
        "moe_sum_rows_and_dot": (y, None, weights, inverse, x, None),
        "moe_weighted_gate_backward": (*gate, None),
    }
    for name, arguments in raw.items():
        torch.library.opcheck(getattr(torch.ops.perfguard_kernels, name).default, arguments)
    real = every_result(inputs, gate)
    with FakeTensorMode() as mode:
        faked = Moved(*(mode.from_tensor(each) for each in (x, y, plus, weights, inverse)))
        fake = every_result(faked, tuple(mode.from_tensor(each) for each in gate))
    for name, value in real.items():
        assert (fake[name].dtype, fake[name].shape, fake[name].stride()) == (value.dtype, value.shape, value.stride())


def test_a_cpu_runs_no_kernel_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    open_path("eager", monkeypatch)
    assert rows.path("cpu", torch.bfloat16) == "eager"


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("sizes", ["moe of most choices", pytest.param("moe", marks=pytest.mark.nightly)])
def test_compiles_for_another_architecture_without_spilling(arch: str, sizes: str, nursery: Nursery) -> None:
    """In a process of its own: here the kernels are interpreted functions."""
    found = elsewhere.compiled(nursery, "targets", sizes, arch)
    assert {each["kernel"] for each in found} == {"_spread", "_sum", "_backward"}
    assert len({each["case"] for each in found}) == len(found), "each is to be one launch"
    for each in found:
        spilled = each["stack_bytes"] if arch.startswith("sm_") else each["private_segment_fixed_size"]
        assert spilled == 0, each
