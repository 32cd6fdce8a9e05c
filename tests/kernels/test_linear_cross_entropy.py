"""Cross entropy of a linear layer in chunks: against all logits in float64, and in the memory of a part of them."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.operators import linear_cross_entropy, reference
from tests.kernels.guards import no_device_waits, no_host_reads
from tests.kernels.operators import unchecked_indices
from tests.kernels.paths import GPU, KernelPath
from tests.kernels.test_cross_entropy_options import EVERY, given, oracle

# In the interpreter NumPy warns of what is meant here: 1 / 0 where the other branch is taken.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROWS, WIDTH, VOCABULARY, CHUNK = 23, 12, 70, 8  # a last chunk that is not full
SETTINGS: dict[str, dict[str, Any]] = {"plain": {}, "all": EVERY}
ALL = ("input", "weight", "bias")


def layer(device: torch.device, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> tuple[Tensor, ...]:
    """input, weight, bias and target; the first rows are sure of their targets with a large `scale`."""
    input, weight = torch.randn(ROWS, WIDTH), torch.randn(VOCABULARY, WIDTH) * scale
    target = torch.randint(VOCABULARY, (ROWS,))
    input[:9] = weight[target[:9]] / scale
    target[::5] = -100
    bias = torch.randn(VOCABULARY)
    return *(each.to(dtype).to(device).requires_grad_() for each in (input, weight, bias)), target.to(device)


def found(
    function: Any, given_layer: tuple[Tensor, ...], reduction: str, options: dict[str, Any], wanted: Any = ALL
) -> list[Tensor]:
    """Loss and z-loss, and the gradients that are wanted."""
    input, weight, bias, target = given_layer
    leaves = dict(zip(ALL, (input, weight, bias), strict=True))
    used = [each if name in wanted else each.detach() for name, each in leaves.items()]
    loss, z_loss = function(*used, target, reduction, options)
    incoming = torch.linspace(-1, 2, ROWS, device=input.device) if reduction == "none" else torch.tensor(1.7)
    gradients = torch.autograd.grad(loss, [leaves[name] for name in wanted], incoming.to(loss))
    return [loss.detach(), z_loss, *gradients]


def ours(input: Tensor, weight: Tensor, bias: Tensor, target: Tensor, reduction: str, options: dict[str, Any]) -> Any:
    how: dict[str, Any] = {"reduction": reduction, "return_z_loss": True, "chunk_rows": CHUNK, **options}
    return linear_cross_entropy(input, weight, target, linear_bias=bias, **how)


def eager(input: Tensor, weight: Tensor, bias: Tensor, target: Tensor, reduction: str, options: dict[str, Any]) -> Any:
    """All logits at once, and yet in the same products: a GPU sums one of another height in another order."""
    logits = torch.cat([F.linear(rows, weight, bias) for rows in input.split(CHUNK)])
    return reference.cross_entropy(logits, target, reduction=reduction, return_z_loss=True, **options)


def true(input: Tensor, weight: Tensor, bias: Tensor, target: Tensor, reduction: str, options: dict[str, Any]) -> Any:
    loss, z_loss = oracle(F.linear(input.double(), weight.double(), bias.double()), target, reduction, **options)
    return loss, z_loss.detach()


def options_of(setting: str, device: torch.device) -> dict[str, Any]:
    options = given(SETTINGS[setting], device)
    return {**options, "weight": options["weight"][:VOCABULARY] + 1} if options else options


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_loss_and_gradients(setting: str, reduction: str, scale: float, kernel_path: KernelPath) -> None:
    """As good as eager, which rounds the logits as we do, to some roundings: a GPU's exp2 is right to two of fp32."""
    options = options_of(setting, kernel_path.device)
    for dtype in (torch.float32, torch.bfloat16):
        tensors = layer(kernel_path.device, dtype, scale)
        right = found(true, tensors, reduction, options)
        other = found(eager, tensors, reduction, options)
        names = ("loss", "z-loss", *ALL)
        for name, one, good, expected in zip(
            names, found(ours, tensors, reduction, options), other, right, strict=True
        ):
            assert one.shape == expected.shape
            assert one.dtype == good.dtype
            error, of_eager = ((each.double() - expected).norm().item() for each in (one, good))
            roundings = 8 if GPU and dtype == torch.float32 else 4
            assert error <= 2 * of_eager + roundings * torch.finfo(dtype).eps * expected.norm().item(), name


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("wanted", [ALL[:1], ALL[1:2], ALL[2:], ALL[:2]], ids=",".join)
def test_what_is_frozen_has_no_gradient(wanted: tuple[str, ...], reduction: str, compiled_path: KernelPath) -> None:
    tensors = layer(compiled_path.device)
    results = found(ours, tensors, reduction, {}, wanted)
    for one, other in zip(results, found(eager, tensors, reduction, {}, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_inputs_of_sequences(reduction: str, kernel_path: KernelPath) -> None:
    """(B, S, K) and (B, S): what their rows give, in the form of the targets, of int32 too."""
    input, weight, _, target = layer(kernel_path.device)
    rows, target = input[:20], target[:20]
    upstream = torch.rand(20, device=input.device) if reduction == "none" else torch.tensor(1.5, device=input.device)
    found = []
    for x, t in ((rows, target), (rows.view(4, 5, WIDTH), target.view(4, 5).int())):
        loss = linear_cross_entropy(x, weight, t, reduction=reduction, chunk_rows=CHUNK)
        assert isinstance(loss, Tensor)
        assert loss.shape == (t.shape if reduction == "none" else ())
        gradients = torch.autograd.grad(loss, (input, weight), upstream.view(loss.shape), retain_graph=True)
        found.append([loss.detach().flatten(), *gradients])
    assert all(map(torch.equal, *found))
    with pytest.raises(
        ValueError, match=r"^target: has shape \(20,\); may have \(4, 5\), that of input without its last"
    ):
        linear_cross_entropy(rows.view(4, 5, WIDTH), weight, target)


@pytest.mark.parametrize("rows", [0, 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 1])
def test_numbers_of_rows(rows: int, kernel_path: KernelPath) -> None:
    input, weight, bias, target = layer(kernel_path.device)
    for reduction in ("mean", "none"):
        results = []
        for function in (ours, eager):
            loss, _ = function(input[:rows], weight, bias, target[:rows], reduction, {})
            results.append([loss.detach(), *torch.autograd.grad(loss.sum(), [input, weight, bias])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_without_a_gradient(kernel_path: KernelPath) -> None:
    """The same loss; nothing of the layer is kept, and its weight's gradient has no memory."""
    tensors = layer(kernel_path.device)
    options = options_of("all", kernel_path.device)
    for reduction in ("mean", "none"):
        with torch.no_grad():
            fixed = ours(*tensors, reduction, options)
        torch.testing.assert_close(list(fixed), found(ours, tensors, reduction, options)[:2])


class Largest(TorchDispatchMode):
    """The most elements that any tensor has which an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(result) if isinstance(each, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


def test_all_logits_exist_nowhere(compiled_path: KernelPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the forward pass nor in the backward one, of any reduction; the reference has them."""
    least, vocabulary = 32, 250
    monkeypatch.setattr(importlib.import_module(linear_cross_entropy.__module__), "LEAST_ROWS", least)
    rows = 4 * least
    for width in (8, 3 * least):  # of the least chunk, and of half as many rows
        chunk = max(least, width // 2)
        input = torch.randn(rows, width, device=compiled_path.device, requires_grad=True)
        weight = torch.randn(vocabulary, width, device=compiled_path.device, requires_grad=True)
        target = torch.randint(vocabulary, (rows,), device=compiled_path.device)
        for function, most in ((linear_cross_entropy, chunk), (reference.linear_cross_entropy, rows)):
            for reduction in ("mean", "none"):
                with Largest() as largest:
                    function(input, weight, target, reduction=reduction).sum().backward()
                assert largest.elements == max(most * vocabulary, weight.numel())


def test_saves_the_gradients_and_nothing_else(compiled_path: KernelPath) -> None:
    input, weight, bias, target = layer(compiled_path.device, torch.bfloat16)
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        ours(input, weight, bias, target, "mean", {})
    assert [(each.shape, each.dtype) for each in packed] == [(each.shape, each.dtype) for each in (input, weight, bias)]
    packed.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        linear_cross_entropy(input, weight, target, linear_bias=bias, reduction="none")
    assert {each.data_ptr() for each in packed} == {each.data_ptr() for each in (input, weight, bias, target)}


def test_backward_again(compiled_path: KernelPath) -> None:
    """With retain_graph the saved gradients stay; the last backward pass has them for itself."""
    input, weight, bias, target = layer(compiled_path.device)
    loss, _ = ours(input, weight, bias, target, "mean", {})
    first = torch.autograd.grad(loss, [input, weight, bias], torch.tensor(3.0), retain_graph=True)
    second = torch.autograd.grad(loss, [input, weight, bias])
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, 3 * other)


def test_under_autocast(compiled_path: KernelPath) -> None:
    """The layer is computed in autocast's dtype, and gradients have that of their tensors."""
    input, weight, bias, target = layer(compiled_path.device)
    mixed = (input.detach().bfloat16().requires_grad_(), weight, bias, target)
    with torch.autocast(compiled_path.device.type, torch.bfloat16):
        results = found(ours, mixed, "mean", {})
    plain = tuple(each.detach().bfloat16().requires_grad_() for each in (input, weight, bias))
    for one, other in zip(results, found(ours, (*plain, target), "mean", {}), strict=True):
        assert torch.equal(one, other.to(one.dtype))
    assert [each.dtype for each in results[2:]] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_on_meta(reduction: str) -> None:
    input, weight, bias, target = (each.detach().to("meta") for each in layer(torch.device("cpu")))
    loss = linear_cross_entropy(input.requires_grad_(), weight, target, linear_bias=bias, reduction=reduction)
    assert (loss.device.type, loss.dtype) == ("meta", torch.float32)
    loss.sum().backward()


def test_the_host_reads_no_data(triton_path: KernelPath) -> None:
    input, weight, bias, target = layer(triton_path.device)
    for reduction in ("mean", "none"):
        ours(input, weight, bias, target, reduction, {})[0].sum().backward()
        with unchecked_indices(), no_host_reads(), no_device_waits():
            ours(input, weight, bias, target, reduction, {})[0].sum().backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_as_one_graph(reduction: str, compiled_path: KernelPath) -> None:
    """Whatever the number of rows, and with it of chunks."""
    torch._dynamo.reset()
    input, weight, bias, target = layer(compiled_path.device)
    options = options_of("all", compiled_path.device)

    def step(input: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        return ours(input, weight, bias, target, reduction, options)[0]  # type: ignore[no-any-return]

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (ROWS, 5, 11):
        tensors = input[:rows].detach().clone().requires_grad_(), weight, bias
        results = []
        for function in (compiled, step):
            with torch.compiler.set_stance("default" if rows == ROWS else "fail_on_recompile"):
                loss = function(*tensors, target[:rows].clone())
            results.append([loss.detach(), *torch.autograd.grad(loss.sum(), tensors)])
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)


def test_opcheck(compiled_path: KernelPath) -> None:
    input, weight, bias, target = layer(compiled_path.device)
    options = (torch.ones(VOCABULARY, device=input.device), None, 0.1, 5.0, 0.01, True)
    operators = torch.ops.perfguard_kernels
    fixed = [each.detach() for each in (input, weight, bias)]
    factor, kept = torch.randn(ROWS, device=input.device), torch.tensor(9, device=input.device)
    every = (*fixed, target, factor, kept, [True, False, True], -100, CHUNK, *options)
    torch.library.opcheck(operators.linear_cross_entropy.default, every)
    torch.library.opcheck(
        operators.linear_cross_entropy_each.default, (input, weight, bias, target, -100, CHUNK, *options)
    )
    losses = torch.randn(ROWS, device=input.device)
    torch.library.opcheck(
        operators.linear_cross_entropy_reduce.default, (input, weight, bias, losses, kept, *(f.clone() for f in fixed))
    )


INPUT, WEIGHT, TARGET = torch.zeros(4, 8), torch.zeros(9, 8), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": INPUT[0]}, "input: has 1 dimensions, shape (8,); may have 2"),
        ({"linear_weight": WEIGHT[:, :7]}, "linear_weight: has 7 columns; may have 8, as input has"),
        ({"linear_weight": WEIGHT.bfloat16()}, "linear_weight: is torch.bfloat16; may be torch.float32, as input is"),
        ({"linear_weight": None}, "linear_weight: is a NoneType; may be a tensor"),
        ({"linear_bias": WEIGHT[:8, 0]}, "linear_bias: has 8 elements; may have 9, one for each row of linear_weight"),
        ({"linear_bias": WEIGHT}, "linear_bias: has 2 dimensions, shape (9, 8); may have 1"),
        ({"target": TARGET[:3]}, "target: has 3 elements; may have 4, one for each row of input"),
        ({"target": TARGET + 9}, "target: is 9 at position 0; may be 0 to 8 or -100"),
        ({"weight": WEIGHT[:8, 0]}, "weight: has 8 elements; may have 9, one for each class"),
        ({"chunk_rows": 0}, "chunk_rows: is 0; may be 1 or more"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        linear_cross_entropy(**{"input": INPUT, "linear_weight": WEIGHT, "target": TARGET, **change})
