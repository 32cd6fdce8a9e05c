"""Fused cross entropy with class weights, smoothing, a soft cap, the z-loss and losses of rows: against float64."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.fp8.inputs import far_apart
from kernels.operators import cross_entropy, cross_entropy_rows, reference
from tests.kernels.guards import guarded_allocations, no_device_waits, no_host_reads
from tests.kernels.operators import unchecked_indices
from tests.kernels.paths import GPU, KernelPath, every_second

# In the interpreter NumPy warns of what is meant here: inf - inf, 0 / 0.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROWS, VOCABULARY, CAP = 6, 1100, 5.0  # more than a block of each candidate
EVERY = {"weight": True, "label_smoothing": 0.1, "softcap": CAP, "lse_square_scale": 1e-2}
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {name: value} for name, value in EVERY.items()},
    "weight and smoothing": {"weight": True, "label_smoothing": 0.3},
    "smoothing alone is left": {"label_smoothing": 1.0},
    "all": EVERY,
}
KINDS = {"normal": 1.0, "confident": 8.0, "certain": 1e4}  # how large logits are; the last rows have one-hot softmaxes


def drawn(kind: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits and targets; some are the most probable class by far, others have no probability, one row is ignored."""
    logits = torch.randn(ROWS, VOCABULARY) * KINDS[kind]
    target = torch.tensor([0, 5, -100, VOCABULARY - 1, 7, 8])
    if kind != "normal":
        logits[[0, 1, 3], target[[0, 1, 3]]] = logits.amax(1)[[0, 1, 3]] + 3
    return logits.to(dtype).to(device), target.to(device)


def weights(device: torch.device, count: int = VOCABULARY) -> Tensor:
    """Of the classes, one of them 0."""
    return torch.linspace(0, 2.0, count, device=device)


def given(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {**options, "weight": weights(device)} if "weight" in options else dict(options)


def oracle(
    logits: Tensor,
    target: Tensor,
    reduction: str,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    lse_square_scale: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Loss and z-loss in float64: torch's cross entropy, and the two definitions that it lacks."""
    x = logits.double()
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    weight = None if weight is None else weight.double()
    loss = F.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=label_smoothing)
    z_loss = lse_square_scale * torch.logsumexp(x, 1).square() * (target != -100)
    if reduction != "none":
        z_loss = z_loss.sum() / ((target != -100).sum() if reduction == "mean" else 1)
    return loss + z_loss, z_loss


def trained(loss_of: Any, logits: Tensor, incoming: Tensor) -> list[Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    loss, z_loss = loss_of(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf, incoming.to(loss.dtype))
    return [loss.detach().double(), z_loss.detach().double(), gradient.double()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradient(name: str, reduction: str, kind: str, kernel_path: KernelPath) -> None:
    """In the norm of each, to a few roundings, as good as eager fp32; the incoming gradient is not 1."""
    device = kernel_path.device
    options = given(OPTIONS[name], device)
    incoming = torch.randn(ROWS, device=device) if reduction == "none" else torch.tensor(1.7, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        logits, target = drawn(kind, dtype, device)

        def ours(
            leaf: Tensor, function: Any = cross_entropy, target: Tensor = target, dtype: torch.dtype = dtype
        ) -> Any:
            return function(leaf.to(dtype), target, reduction=reduction, return_z_loss=True, **options)

        expected = trained(lambda leaf, target=target: oracle(leaf, target, reduction, **options), logits, incoming)
        eager = trained(lambda leaf, ours=ours: ours(leaf, reference.cross_entropy), logits, incoming)
        for found, right, other, what in zip(
            trained(ours, logits, incoming), expected, eager, ("loss", "z-loss", "gradient"), strict=True
        ):
            rounding = torch.finfo(dtype if what == "gradient" else torch.float32).eps
            limit = 2 * (other - right).norm() + 4 * rounding * right.norm()
            assert (found - right).norm() <= limit, f"{what} of {dtype}"


@pytest.mark.parametrize("probability", [0.9, 0.999, 0.9999])
def test_target_gradient_of_confident_rows(probability: float, kernel_path: KernelPath) -> None:
    """Within 1 % of float64 with weights, a cap and in bf16: 1 - p is not what is left of a rounded p."""
    logits = torch.randn(3, 101, dtype=torch.float64)
    target = torch.tensor([0, 50, 100])
    others = logits.scatter(1, target[:, None], -torch.inf).logsumexp(1, keepdim=True)
    ratio = torch.tensor(probability / (1 - probability)).log()
    logits = logits.scatter(1, target[:, None], others + ratio)
    logits = (30 * torch.atanh(logits / 30)).to(torch.bfloat16).to(kernel_path.device)
    target = target.to(kernel_path.device)
    options = {"weight": weights(kernel_path.device, 101) + 0.5, "softcap": 30.0}
    leaf, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    cross_entropy(leaf, target, **options).backward()
    oracle(double, target, "mean", **options)[0].backward()
    assert leaf.grad is not None
    assert double.grad is not None
    at = target[:, None]
    assert (leaf.grad.double().gather(1, at) / double.grad.gather(1, at) - 1).abs().max() < 0.01


def test_a_cap_that_is_reached(kernel_path: KernelPath) -> None:
    """Masked and huge logits are plus and minus the cap, finite, and have no gradient; the others have their own.

    Two are the cap itself, where tanh changes from one formula to the other.
    """
    logits = torch.randn(2, 9, device=kernel_path.device)
    logits[0, 2], logits[0, 3], logits[1, 4] = -torch.inf, 1e4, torch.inf
    logits[0, 5], logits[1, 6] = -CAP, CAP
    target = torch.tensor([3, 1], device=kernel_path.device)
    leaf, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss, expected = cross_entropy(leaf, target, softcap=CAP), oracle(double, target, "mean", softcap=CAP)[0]
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-5, atol=1e-9)
    assert not leaf.grad[logits.abs() > 1e3].any()


def test_a_masked_class_with_smoothing(kernel_path: KernelPath) -> None:
    """As torch has it: every class is a little of the target, so the loss is infinite, and the gradient is not."""
    logits = torch.randn(3, 9, device=kernel_path.device)
    logits[0, 2] = logits[1, 4] = -torch.inf
    target = torch.tensor([3, 4, 0], device=kernel_path.device)  # another class, the target, none
    for weight in (None, weights(kernel_path.device, 9) + 1):
        leaf = logits.clone().requires_grad_()
        losses = cross_entropy(leaf, target, weight=weight, label_smoothing=0.1, reduction="none")
        losses.sum().backward()
        double = logits.double().requires_grad_()
        expected = oracle(double, target, "none", weight=weight, label_smoothing=0.1)[0]
        expected.sum().backward()
        torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=0)
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{}, EVERY], ids=["plain", "every"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_kept_is_zero_and_not_nan(reduction: str, options: dict[str, Any], kernel_path: KernelPath) -> None:
    options = given(options, kernel_path.device)
    for rows in (0, 4):
        logits = torch.randn(rows, VOCABULARY, device=kernel_path.device).mul_(torch.nan).requires_grad_()
        target = torch.full((rows,), -100, device=kernel_path.device)
        loss, z_loss = cross_entropy(logits, target, reduction=reduction, return_z_loss=True, **options)
        loss.sum().backward()
        assert loss.shape == z_loss.shape == ((rows,) if reduction == "none" else ())
        assert not loss.any()
        assert not z_loss.any()
        assert logits.grad is not None
        assert not logits.grad.any()


def test_kept_rows_of_no_weight_are_nan(kernel_path: KernelPath) -> None:
    """As torch has it: 0 / 0, and no number that looks like a loss."""
    logits = torch.randn(2, 9, device=kernel_path.device)
    target = torch.tensor([0, -100], device=kernel_path.device)
    weight = weights(kernel_path.device, 9)
    assert F.cross_entropy(logits, target, weight).isnan()
    assert cross_entropy(logits, target, weight=weight).isnan()
    assert cross_entropy(logits, target, weight=weight, reduction="sum").item() == 0.0


@pytest.mark.parametrize("bad", [-1, 9, 2**40])
def test_a_bad_target_is_nan_on_a_gpu(bad: int, kernel_path: KernelPath) -> None:
    """In its row alone, and no weight is read for it."""
    logits = torch.randn(3, 9, device=kernel_path.device, requires_grad=True)
    target = torch.tensor([4, bad, 0], device=kernel_path.device)
    options = {**EVERY, "weight": weights(kernel_path.device, 9) + 1}
    with unchecked_indices():
        losses, z_losses = cross_entropy(logits, target, reduction="none", return_z_loss=True, **options)
        losses.sum().backward()
        mean = cross_entropy(logits, target, **options)
    assert mean.isnan()
    assert logits.grad is not None
    for rows in (losses, z_losses, logits.grad.sum(1)):
        assert rows.isnan().tolist() == [False, True, False]


def test_weights_of_any_form(kernel_path: KernelPath) -> None:
    """Strided, of another dtype, and 2^31 elements apart: the same numbers, to the order of a compiled sum."""
    logits, target = drawn("normal", torch.float32, kernel_path.device)
    logits, target = logits[:, :16].clone().requires_grad_(), target.clamp(max=15)
    plain = weights(kernel_path.device, 16).bfloat16()
    forms = [plain.float(), every_second(plain)]
    if GPU != "cuda" or torch.cuda.mem_get_info()[0] >> 30 > 20:
        forms.append(far_apart(plain, dim=0, stride=2**28))
    results = [
        [loss.detach(), *torch.autograd.grad(loss, logits)]
        for loss in (cross_entropy(logits, target, weight=form, label_smoothing=0.1) for form in (plain, *forms))
    ]
    for found in results[1:]:
        for one, other in zip(found, results[0], strict=True):
            # An element of the gradient is a difference of terms as large as the largest of them.
            rounding = torch.finfo(torch.float32).eps * other.abs().max().item()
            torch.testing.assert_close(one, other, rtol=2e-6, atol=rounding)


@pytest.mark.parametrize("layout", ["contiguous", "column-major", "sliced"])
@pytest.mark.parametrize("inplace", [False, True])
def test_losses_of_rows(inplace: bool, layout: str, kernel_path: KernelPath) -> None:
    """Each row's incoming gradient is its own, of any stride, at each of two backward passes."""
    logits, target = drawn("normal", torch.float32, kernel_path.device)
    leaf = logits.requires_grad_()
    given_logits = leaf * 1.0
    if layout == "column-major":
        given_logits = leaf.t().contiguous().t()
    elif layout == "sliced":
        given_logits = torch.cat((leaf, leaf), 1)[:, :VOCABULARY]
    incoming = torch.randn(ROWS, device=leaf.device)
    (expected,) = torch.autograd.grad(reference.cross_entropy(leaf, target, reduction="none"), leaf, incoming)
    losses = cross_entropy(given_logits, target, reduction="none", inplace=inplace)
    torch.testing.assert_close(losses, F.cross_entropy(leaf, target, reduction="none"))
    for keep in (True, False):
        (gradient,) = torch.autograd.grad(losses, leaf, every_second(incoming), retain_graph=keep)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_the_z_loss_is_for_logs(kernel_path: KernelPath) -> None:
    """It has no gradient of its own, and is a part of the loss, also without a gradient to compute."""
    logits, target = drawn("normal", torch.float32, kernel_path.device)
    logits.requires_grad_()
    for reduction in ("mean", "none"):
        how = {"reduction": reduction, "lse_square_scale": 0.1, "return_z_loss": True}
        loss, z_loss = cross_entropy(logits, target, **how)
        assert loss.requires_grad
        assert not z_loss.requires_grad
        with torch.no_grad():
            fixed = cross_entropy(logits, target, **how)
        torch.testing.assert_close((loss.detach(), z_loss), fixed)
        torch.testing.assert_close(loss.detach() - z_loss, cross_entropy(logits, target, reduction=reduction).detach())
    assert not cross_entropy(logits, target, return_z_loss=True)[1].any()


def test_the_host_reads_no_data_and_nothing_is_written_past_the_end(triton_path: KernelPath) -> None:
    logits, target = drawn("normal", torch.bfloat16, triton_path.device)
    logits.requires_grad_()
    for reduction in ("mean", "none"):
        how = {**given(EVERY, triton_path.device), "reduction": reduction, "return_z_loss": True}
        cross_entropy(logits, target, **how)[0].sum().backward()  # compilation may read what it likes
        with guarded_allocations("nan"), unchecked_indices(), no_host_reads(), no_device_waits():
            cross_entropy(logits, target, **how)[0].sum().backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_as_one_graph(reduction: str, compiled_path: KernelPath) -> None:
    torch._dynamo.reset()
    options = given(EVERY, compiled_path.device)

    def step(leaf: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(leaf * 1.0, target, reduction=reduction, return_z_loss=True, **options)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    logits, target = drawn("normal", torch.float32, compiled_path.device)
    for rows in (ROWS, 3, 5):
        leaf, targets = logits[:rows].clone().requires_grad_(), target[:rows].clone()
        incoming = torch.ones(rows if reduction == "none" else (), device=leaf.device)
        with torch.compiler.set_stance("default" if rows == ROWS else "fail_on_recompile"):
            found = trained(lambda leaf, targets=targets: compiled(leaf, targets), leaf, incoming)
        for one, other in zip(
            found, trained(lambda leaf, targets=targets: step(leaf, targets), leaf, incoming), strict=True
        ):
            assert torch.equal(one, other)


def test_opcheck(compiled_path: KernelPath) -> None:
    """Schemas, fakes and what is mutated, with every option."""
    logits, target = drawn("normal", torch.float32, compiled_path.device)
    kept, ratio = (torch.tensor(value, device=logits.device) for value in (5, 0.9))
    options = cross_entropy_rows.Options(weights(logits.device), ratio, 0.1, CAP, 0.01, True)
    operators = torch.ops.perfguard_kernels
    for operator in (
        operators.cross_entropy_losses,
        operators.cross_entropy_gradient,
        operators.cross_entropy_gradient_,
    ):
        torch.library.opcheck(operator.default, (logits.clone(), target, kept, -100, None, *options))
    factor = torch.randn(ROWS, device=logits.device)
    torch.library.opcheck(operators.cross_entropy_scaled.default, (logits, factor, None))
    torch.library.opcheck(operators.cross_entropy_scale_.default, (logits, factor, None))
    losses = torch.randn(ROWS, device=logits.device)
    leaf = logits.clone().requires_grad_()
    torch.library.opcheck(operators.cross_entropy_reduce.default, (leaf, losses, None, logits, True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(8)}, "weight: has 8 elements; may have 9, one for each class"),
        ({"weight": torch.ones(9).long()}, "weight: is torch.int64; may be torch.bfloat16, "),
        ({"weight": torch.ones(1, 9)}, "weight: has 2 dimensions, shape (1, 9); may have 1"),
        ({"weight": torch.ones(9, device="meta")}, "weight: is on meta; may be on cpu, where logits is"),
        ({"label_smoothing": 1.5}, "label_smoothing: is 1.5; may be 0 to 1"),
        ({"softcap": 0.0}, "softcap: is 0.0; may be above 0 and finite, or None"),
        ({"softcap": math.inf}, "softcap: is inf; may be above 0 and finite, or None"),
        ({"softcap": math.nan}, "softcap: is nan; may be above 0 and finite, or None"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        cross_entropy(torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64), **change)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_class_and_every_row_ignored(reduction: str, kernel_path: KernelPath) -> None:
    logits = torch.randn(2, 0, device=kernel_path.device, requires_grad=True)
    target = torch.full((2,), -100, device=kernel_path.device)
    loss = cross_entropy(logits, target, reduction=reduction, weight=torch.ones(0, device=kernel_path.device))
    assert not loss.any()
    loss.sum().backward()
