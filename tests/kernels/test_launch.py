"""Launches that are prepared once take the binary that Triton would take, and plans are right for what is asked."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch.autograd import forward_ad

from kernels import fp8
from kernels.fp8 import ops, scaled
from kernels.launch import Launch, _kind
from kernels.operators import cross_entropy, linear_cross_entropy, silu_mul
from tests.kernels import elsewhere
from tests.kernels.paths import KernelPath, every_second
from tests.kernels.targets import launches_on
from tests.nursery import Nursery


def test_a_prepared_launch_takes_triton_s_binary(nursery: Nursery) -> None:
    """For pointers that are aligned and not; dtypes; numbers that are 1, divide by 16, are wide or negative."""
    found = elsewhere.compiled(nursery, "launch_kinds")
    assert len({one["own"] for one in found}) > 8, "the arguments are hardly told apart"
    for one in found:
        assert one["prepared"] == one["own"], one["way"]
        assert one["hooked"] == 1, "who lists launches has to see each"


def test_kinds_tell_apart_what_triton_tells_apart() -> None:
    """Triton's own key of an argument, of everything that a call may give: one of ours is never two of Triton's."""
    specialise = pytest.importorskip("triton._C.libtriton").native_specialize_impl
    base = importlib.import_module("triton.backends.compiler").BaseBackend
    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    powers = [sign * 2**power + more for power in (0, 4, 8, 30, 31, 32, 62) for sign in (1, -1) for more in (-1, 0, 1)]
    numbers = [*range(-40, 41), *powers, 2**63 - 1, -(2**63), 2**63, 2**63 + 16, 2**64 - 1]
    memory = torch.zeros(4096, dtype=torch.uint8)
    start = -memory.data_ptr() % 16
    dtypes = (
        torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
        torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    )  # fmt: skip
    tensors = [
        memory[start + by : start + by + 1024].view(dtype) for dtype in dtypes for by in range(0, 33, dtype.itemsize)
    ]
    floats = torch.zeros(64, 64, requires_grad=True)
    tiles = [descriptor(floats.detach().to(dtype), [64, 64], [64, 1], [height, 16])
             for dtype in (torch.bfloat16, torch.float32) for height in (16, 32)]  # fmt: skip
    others = [None, True, False, 0.0, 1.0, 16.0, float("nan"), floats, torch.nn.Parameter(floats.detach()), *tiles]
    for specialised in (False, True):
        keys: dict[object, set[object]] = {}
        for argument in (*numbers, *tensors, *others):
            own = specialise(base, argument, False, specialised, True)
            keys.setdefault(_kind(argument, specialised), set()).add(own)
        assert {kind: own for kind, own in keys.items() if len(own) > 1} == {}
        assert len(keys) > 30, "the arguments are hardly told apart"


# ---- which plan Hopper takes, asked on any machine -------------------------------------------------------------------


def planned(
    quantizer: Callable[..., object], *inputs: torch.Tensor, **options: object
) -> list[tuple[str, dict[str, Any]]]:
    """Kernels and arguments of the launches that a call makes on Hopper."""
    with launches_on("sm_90") as launches:
        quantizer(*inputs, **options)
    return [(kernel.__name__, arguments) for kernel, arguments in launches]


def test_a_call_in_a_frame_that_dynamo_leaves_to_python_is_not_compiled_by_itself() -> None:
    """It would be, for each operator and shape anew, up to Dynamo's limit."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def call(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for x in xs:
            torch._dynamo.graph_break()  # in a loop: the whole frame is Python's
            found.append(ops.rowwise(x, None, True, None)[1])
        return found

    xs = [torch.randn(4, 16 * columns).bfloat16() for columns in range(1, 5)]
    for scales, x in zip(call(xs), xs, strict=True):
        assert torch.equal(scales, fp8.quantize_rowwise(x, power_of_two=True)[1])
    assert graphs == []
    whole = torch.compile(lambda x: ops.rowwise(x, None, True, None)[1] * 2, backend=backend, fullgraph=True)
    assert torch.equal(whole(xs[0]), 2 * fp8.quantize_rowwise(xs[0], power_of_two=True)[1])
    assert len(graphs) == 1  # what is traced still goes through


def _pair() -> list[torch.Tensor]:
    return [torch.randn(4, 8).requires_grad_() for _ in range(2)]


def test_a_recorded_call_is_what_torch_records() -> None:
    """The shorter way keeps the tensors, and gives the gradients, of the operator behind the dispatcher."""
    leaves = _pair()
    found = []
    for each in (silu_mul, lambda g, u: torch.ops.perfguard_kernels.silu_mul(g, u, None)):
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x) or x, lambda x: x):  # type: ignore[misc]
            out = each(*leaves)
        assert out.grad_fn is not None
        found.append((out.grad_fn.name(), [out, *kept, *torch.autograd.grad(out, leaves, torch.ones_like(out))]))
    (name, tensors), (other, expected) = found
    assert name == other
    assert len(tensors) == len(expected) == 5
    assert all(map(torch.equal, tensors, expected))


def test_who_replaces_functions_of_torch_sees_a_recorded_operator() -> None:
    seen = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((str(func), torch.is_grad_enabled()))
            return func(*args, **(kwargs or {}))

    with Listening():
        silu_mul(*_pair())
    assert ("perfguard_kernels.silu_mul.default", True) in seen


def test_a_derivative_inside_a_transform_is_refused() -> None:
    g, u = _pair()
    with pytest.raises(RuntimeError, match=r"^silu_mul: is differentiated inside a transform of torch\.func"):
        torch.func.grad(lambda g: silu_mul(g, u).sum())(g)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own use of it
@pytest.mark.parametrize("needs", [False, True])
def test_a_tangent_is_refused(needs: bool) -> None:
    """It would be lost: nothing below takes one on."""
    g, u = (each.detach().requires_grad_(needs) for each in _pair())
    with pytest.raises(NotImplementedError, match=r"^silu_mul: got a tangent of forward-mode"):
        torch.func.jvp(lambda g: silu_mul(g, u), (g,), (g,))
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match=r"^silu_mul: got a tangent of forward-mode"):
            silu_mul(forward_ad.make_dual(g, u), u)
        assert torch.equal(silu_mul(g, u), silu_mul(g.detach(), u.detach()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("of", ["input", "linear_weight", "linear_bias", "weight"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("needs", [False, True])
def test_a_tangent_of_a_loss_is_refused(needs: bool, reduction: str, of: str) -> None:
    """Losses detach what they are given: of a dual number only its value would be left, and the derivative 0."""
    given = {name: torch.randn(shape) for name, shape in
             (("input", (5, 8)), ("linear_weight", (9, 8)), ("linear_bias", (9,)), ("weight", (9,)))}  # fmt: skip
    given["input"].requires_grad_(needs)
    target = torch.tensor([0, 8, -100, 3, 3])

    def loss(value: torch.Tensor) -> torch.Tensor:
        tensors = {**given, of: value}
        how = {"reduction": reduction, "weight": tensors["weight"].abs()}
        if of in ("input", "weight"):
            with pytest.raises(NotImplementedError, match=r"^cross_entropy: got a tangent of forward-mode"):
                cross_entropy(tensors["input"], target, **how | {"weight": how["weight"][:8]}, ignore_index=8)
        return linear_cross_entropy(
            tensors["input"], tensors["linear_weight"], target, linear_bias=tensors["linear_bias"], **how
        )  # fmt: skip

    with pytest.raises(NotImplementedError, match=r"^linear_cross_entropy: got a tangent of forward-mode"):
        torch.func.jvp(loss, (given[of],), (torch.ones_like(given[of]),))


@pytest.mark.parametrize(("kind", "entered"), [("cuda", 1), ("xpu", 1), ("cpu", 0)])
def test_triton_s_own_launch_is_on_the_tensors_device(kind: str, entered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Triton launches by itself, on AMD and Intel: it takes whatever device is current."""
    current: list[int] = []

    @contextmanager
    def device(of: torch.device) -> Iterator[None]:
        current.append(of.index)
        yield
        current.pop()

    for name in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, name), "device", device)
    seen: list[list[int]] = []
    kernel = mock.MagicMock(arg_names=[], params=[])
    kernel.__getitem__.return_value = lambda *_, **__: seen.append(list(current))
    Launch(kernel)(torch.device(kind, 1), 1)
    assert seen == [[1] * entered]
    assert not current


def test_words_are_asked_of_the_address() -> None:
    """An external buffer may begin at any multiple of 2 bytes, and its tensor's offset is 0 all the same."""
    memory, offs = bytearray(32 * 64 * 2 + 64), torch.tensor([32], dtype=torch.int32)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 16
    for beyond, expected in ((0, "quantize_ring"), (2, "quantize_columns")):
        x = torch.frombuffer(memory, dtype=torch.bfloat16, offset=start + beyond, count=32 * 64).view(32, 64)
        assert x.storage_offset() == 0
        assert planned(fp8.quantize_colwise_per_group, x, offs)[-1][0] == expected


@pytest.mark.parametrize("candidate", [0, 1])
def test_nothing_begins_early_behind_a_stranger(candidate: int) -> None:
    """A kernel that may begin before the one ahead has ended follows a fill of ours, or is launched the usual way."""
    for rows, width in ((1408, 2048), (1408, 2040), (8192, 5120), (16, 48)):
        weight = torch.empty(2, rows, width, dtype=torch.bfloat16).mT
        names = []
        for name, arguments in planned(fp8.quantize_transpose_3d_atomic, weight, candidate=candidate):
            fills = "zero_words" in names or name == "quantize_columns"  # that one's fill is torch's
            assert fills or not arguments.get("launch_pdl"), f"{rows} x {width}: {name}"
            names.append(name)


# ---- the grouped matmul ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["emulation", "triton"])
def test_ends_may_lie_apart(backend: str, triton_path: KernelPath) -> None:
    a, w = torch.randn(24, 32, device=triton_path.device).bfloat16(), torch.randn(3, 16, 32, device=triton_path.device)
    offs = torch.tensor([5, 9, 20], dtype=torch.int32, device=triton_path.device)
    results = []
    for ends in (offs, every_second(offs)):
        leaves = [a.clone().requires_grad_(), w.bfloat16().requires_grad_()]
        out = fp8.grouped_mm(leaves[0], leaves[1].mT, ends, backend=backend)
        results.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_wgrad_keeps_no_codes_of_dgrad(monkeypatch: pytest.MonkeyPatch) -> None:
    """E * K * N and R * N bytes: 807 MB at 16 experts of 8192 x 5120."""
    kept: list[weakref.ref[torch.Tensor]] = []
    rows, groups = scaled.matmul_2d3d, scaled.matmul_2d2d

    def dgrad(a: torch.Tensor, a_inverse: torch.Tensor, b: torch.Tensor, *rest: Any) -> torch.Tensor:
        kept[:] = weakref.ref(a), weakref.ref(b)
        return rows(a, a_inverse, b, *rest)  # type: ignore[no-any-return]

    def wgrad(*arguments: Any) -> torch.Tensor:
        assert [one() for one in kept] == [None, None]
        return groups(*arguments)  # type: ignore[no-any-return]

    a, w = torch.randn(24, 32).bfloat16().requires_grad_(), torch.randn(2, 16, 32).bfloat16().requires_grad_()
    monkeypatch.setattr(scaled, "matmul_2d3d", dgrad)
    monkeypatch.setattr(scaled, "matmul_2d2d", wgrad)
    fp8.grouped_mm(a, w.mT, torch.tensor([9, 20], dtype=torch.int32)).sum().backward()
