"""`kernels.compat.liger` against liger-kernel 0.8.5 itself: signatures, losses and gradients.

Without a GPU Liger's kernels run in Triton's interpreter, but for those that ask a number for `.to`, which is a Python
number there: class weights, a soft cap, SwiGLU of two tensors. These are compared on a GPU, and here with float64
(test_cross_entropy_options.py) or torch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from kernels.compat import liger as ours
from tests.kernels.paths import GPU, VARIABLE, KernelPath

pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")

# Triton decides when a kernel is defined; what Liger imports, torchao among it, may warn when it is compiled first.
with mock.patch.dict(os.environ, {} if GPU else {VARIABLE: "1"}), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    functional = importlib.import_module("liger_kernel.transformers.functional")
    ops = importlib.import_module("liger_kernel.ops")
    cross_entropy_module = importlib.import_module("liger_kernel.transformers.cross_entropy")
    linear_module = importlib.import_module("liger_kernel.transformers.fused_linear_cross_entropy")
    norm_module = importlib.import_module("liger_kernel.transformers.rms_norm")

ROWS, WIDTH, VOCABULARY = 9, 8, 50
NEEDS_GPU = "needs a GPU: in Triton's interpreter Liger's kernel asks a Python number for .to"
FUNCTIONS = (
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
    "liger_swiglu",
    "liger_rms_norm",
    "liger_rope",
)
CLASSES = (
    "LigerCrossEntropyFunction",
    "LigerFusedLinearCrossEntropyFunction",
    "LigerSiLUMulFunction",
    "LigerFusedGateUpSiLUMulFunction",
    "LigerRMSNormFunction",
    "LigerRopeFunction",
)
MODULES = {
    "LigerCrossEntropyLoss": cross_entropy_module,
    "LigerFusedLinearCrossEntropyLoss": linear_module,
    "LigerRMSNorm": norm_module,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothing and z-loss": {"label_smoothing": 0.1, "lse_square_scale": 1e-2},
    "z-loss apart": {"lse_square_scale": 1e-2, "return_z_loss": True},
    "another ignored": {"ignore_index": 3},
    "predictions": {"return_token_accuracy": True, "return_predicted_tokens": True},
    "weights": {"weight": True, "label_smoothing": 0.1},
    "soft cap": {"softcap": 5.0, "lse_square_scale": 1e-2},
}


def parameters(function: Any) -> list[tuple[str, Any]]:
    given = inspect.signature(function).parameters.values()
    return [(each.name, each.default) for each in given if each.name not in ("ctx", "self")]


def test_parameters_are_liger_s() -> None:
    for name in FUNCTIONS:
        assert parameters(getattr(ours, name)) == parameters(getattr(functional, name)), name
    for name in CLASSES:
        assert parameters(getattr(ours, name).apply) == parameters(getattr(ops, name).forward), name
    for name, module in MODULES.items():
        for method in ("__init__", "forward"):
            theirs = getattr(getattr(module, name), method)
            assert parameters(getattr(getattr(ours, name), method)) == parameters(theirs), name


def options_of(name: str, device: torch.device, weight: str) -> dict[str, Any]:
    options = dict(OPTIONS[name])
    if GPU is None and options.keys() & {"weight", "softcap"}:
        pytest.skip(NEEDS_GPU)
    if options.pop("weight", False):
        options[weight] = torch.linspace(0.5, 2, VOCABULARY, device=device)
    return options


def results(function: Any, leaves: list[Tensor], *others: Any, **options: Any) -> list[Tensor]:
    """The loss, what else is asked for, and gradients of the leaves; whoever overwrites its inputs gets copies."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    found = function(*(leaf * 1 for leaf in leaves), *others, **options)
    loss, *others = [found] if isinstance(found, Tensor) else vars(found).values()
    incoming = torch.linspace(0.5, 2, loss.numel(), device=loss.device).view_as(loss).to(loss.dtype)
    gradients = torch.autograd.grad(loss, leaves, incoming)
    return [loss.detach(), *(each.detach() for each in others if each is not None), *gradients]


def agree(found: list[Tensor], wanted: list[Tensor]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6, check_dtype=False)


def targets(device: torch.device) -> Tensor:
    target = torch.randint(4, VOCABULARY, (ROWS,), device=device)
    target[::4] = 3
    target[1::4] = -100
    return target


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", OPTIONS)
def test_cross_entropy_is_liger_s(name: str, reduction: str, compiled_path: KernelPath) -> None:
    options = options_of(name, compiled_path.device, "weight")
    logits, target = torch.randn(ROWS, VOCABULARY, device=compiled_path.device) * 3, targets(compiled_path.device)
    logits[2, target[2]] = 9.0  # a right one
    target = target.clamp(min=0) if "ignore_index" in options else target
    for call in ("liger_cross_entropy", "module"):
        ours_of, theirs = ours.liger_cross_entropy, functional.liger_cross_entropy
        how = {**options, "reduction": reduction}
        if call == "module":
            ours_of = ours.LigerCrossEntropyLoss(**how)
            theirs = cross_entropy_module.LigerCrossEntropyLoss(**how)
            how = {}
        agree(results(ours_of, [logits], target, **how), results(theirs, [logits], target, **how))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", OPTIONS)
def test_fused_linear_cross_entropy_is_liger_s(name: str, reduction: str, compiled_path: KernelPath) -> None:
    options = options_of(name, compiled_path.device, "ce_weight")
    target = targets(compiled_path.device)
    target = target.clamp(min=0) if "ignore_index" in options else target
    leaves = [
        torch.randn(shape, device=compiled_path.device) for shape in ((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    ]

    def with_bias(function: Any) -> Any:
        return lambda input, weight, bias, target, **how: function(input, weight, target, bias, **how)

    found, wanted = (
        results(with_bias(module.liger_fused_linear_cross_entropy), leaves, target, reduction=reduction, **options)
        for module in (ours, functional)
    )
    agree(found, wanted)
    module = ours.LigerFusedLinearCrossEntropyLoss(reduction=reduction, **options)
    agree(results(lambda input, weight, bias, target: module(weight, input, target, bias), leaves, target), wanted)


def test_swiglu_is_liger_s(compiled_path: KernelPath) -> None:
    if GPU is None:
        pytest.skip(NEEDS_GPU)
    a, b = torch.randn(2, 5, 24, device=compiled_path.device), torch.randn(2, 5, 24, device=compiled_path.device)
    agree(results(ours.liger_swiglu, [a, b]), results(functional.liger_swiglu, [a, b]))
    one, other = ours.LigerSiLUMulFunction, ops.LigerSiLUMulFunction
    agree(results(one.apply, [a, b], 0.5, 2.0), results(other.apply, [a, b], 0.5, 2.0))


def test_swiglu_of_one_tensor_is_liger_s(compiled_path: KernelPath) -> None:
    both = torch.randn(10, 48, device=compiled_path.device)  # of three dimensions Liger's gradient has two
    one, other = ours.LigerFusedGateUpSiLUMulFunction, ops.LigerFusedGateUpSiLUMulFunction
    agree(results(one.apply, [both]), results(other.apply, [both]))


def test_multipliers_of_the_gate(compiled_path: KernelPath) -> None:
    a, b = torch.randn(5, 24, device=compiled_path.device), torch.randn(5, 24, device=compiled_path.device)
    expected = 2 * torch.nn.functional.silu(0.5 * a) * b
    torch.testing.assert_close(ours.LigerSiLUMulFunction.apply(a, b, 0.5, 2.0), expected)


@pytest.mark.parametrize("mode", ["llama", "gemma"])
def test_rms_norm_is_liger_s(mode: str, compiled_path: KernelPath) -> None:
    """In fp32, where casting modes are one; of three dimensions, and with an offset."""
    if GPU is None:
        pytest.skip(NEEDS_GPU)
    x, weight = torch.randn(2, 5, 24, device=compiled_path.device), torch.randn(24, device=compiled_path.device)

    def normed(module: Any, *how: float) -> list[Tensor]:
        call = functools.partial(module.liger_rms_norm, casting_mode=mode, in_place=False)
        return results(lambda x, weight: call(x, weight, *how), [x, weight])

    for how in ((1e-5,), (1e-6, 1.0)):
        agree(normed(ours, *how), normed(functional, *how))


def test_the_module_of_rms_norm_is_the_function() -> None:
    x = torch.randn(3, 8)
    for init, offset in (("ones", 0.0), ("zeros", 1.0)):
        module = ours.LigerRMSNorm(8, 1e-5, offset, init_fn=init)
        torch.testing.assert_close(module(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-5))
    assert list(ours.LigerRMSNorm(8, elementwise_affine=False).parameters()) == []
    with pytest.raises(ValueError, match=r"^init_fn: is 'twos'; may be 'ones' or 'zeros'$"):
        ours.LigerRMSNorm(8, init_fn="twos")


@pytest.mark.parametrize("layout", ["one sequence", "each sequence", "flat", "part", "half"])
def test_rope_is_liger_s(layout: str, compiled_path: KernelPath) -> None:
    """Queries and keys of other numbers of heads, as Hugging Face lays them out."""
    device, width = compiled_path.device, 16
    angle = torch.rand(2 if layout == "each sequence" else 1, 5, 4 if layout == "part" else width // 2, device=device)
    angle = angle[0] if layout == "flat" else angle
    whole = angle if layout == "half" else torch.cat((angle, angle), -1)
    how = {"rotary_dim": width} if layout == "half" else {}
    drawn = [torch.randn(2, 5, heads, width, device=device).transpose(1, 2) for heads in (4, 2)]
    upstream = [torch.randn_like(each) for each in drawn]
    found = []
    for function in (ours.liger_rope, functional.liger_rope):
        leaves = [each.detach().clone(memory_format=torch.preserve_format).requires_grad_() for each in drawn]
        # Liger writes into what it is given, and into the incoming gradients.
        turned = function(*(leaf * 1 for leaf in leaves), whole.cos(), whole.sin(), **how)
        gradients = torch.autograd.grad(turned, leaves, [each.clone() for each in upstream])
        found.append([*(each.detach().clone() for each in turned), *gradients])
    agree(*found)


def test_token_scaling_is_refused_by_name() -> None:
    logits, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^use_token_scaling: is True; may be False: multiply losses of "):
        ours.liger_fused_linear_cross_entropy(logits, logits, target, use_token_scaling=True)


def test_logits_are_overwritten_and_autograd_knows(compiled_path: KernelPath) -> None:
    """In Liger's memory: no second tensor of the logits' size. Who saved them is told."""
    leaf = torch.randn(4, 9, device=compiled_path.device, requires_grad=True)
    logits = leaf * 1.0
    elsewhere = logits.square().sum()
    ours.liger_cross_entropy(logits, torch.tensor([0, 1, 2, 3], device=compiled_path.device))
    assert not torch.equal(logits, leaf)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        elsewhere.backward()


def test_logits_that_share_memory_are_not_overwritten(compiled_path: KernelPath) -> None:
    """Nobody asked for it by name, so it is no error."""
    leaf = torch.randn(1, 9, device=compiled_path.device, requires_grad=True)
    before, target = leaf.detach().clone(), torch.tensor([0, 1, 2, 3], device=compiled_path.device)
    ours.liger_cross_entropy(leaf.expand(4, 9), target).backward()
    expected = torch.nn.functional.cross_entropy(before.requires_grad_().expand(4, 9), target)
    expected.backward()
    assert torch.equal(leaf, before)
    torch.testing.assert_close(leaf.grad, before.grad)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_options_of_a_loss_may_be_set_later(reduction: str, compiled_path: KernelPath) -> None:
    logits, weight = (torch.randn(4, 9, device=compiled_path.device) for _ in range(2))
    target = torch.tensor([0, 1, 2, 3], device=compiled_path.device)
    plain, fused = ours.LigerCrossEntropyLoss(), ours.LigerFusedLinearCrossEntropyLoss()
    plain.reduction = fused.reduction = reduction
    assert torch.equal(plain(logits, target), ours.liger_cross_entropy(logits, target, reduction=reduction))
    wanted = ours.liger_fused_linear_cross_entropy(logits, weight, target, reduction=reduction)
    assert torch.equal(fused(weight, logits, target), wanted)
