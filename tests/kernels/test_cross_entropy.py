"""Fused cross entropy where such kernels go wrong: confident rows, the mean over many, bad rows, memory."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernels.operators import cross_entropy, reference
from kernels.operators.cross_entropy_rows import gradient_of
from tests.kernels.operators import DTYPES as OPERATOR_DTYPES
from tests.kernels.operators import gradients, unchecked_indices
from tests.kernels.paths import GPU, KernelPath

# In the interpreter NumPy warns of what is meant here: inf - inf, 0 / 0.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = (torch.bfloat16, torch.float32)
PROBABILITIES = (0.5, 0.9, 0.99, 0.999, 0.9999)
COUNTS = (1, 3, 7, 1000, 3000, 4096, 100003)


def confident(vocabulary: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A row for each probability, which its target has but for the rounding of the logits; targets anywhere.

    The other logits differ, so that their sum is one of many unlike terms.
    """
    x = torch.randn(len(PROBABILITIES), vocabulary, dtype=torch.float64)
    target = torch.tensor([0, vocabulary // 3, vocabulary // 2, vocabulary - 2, vocabulary - 1])
    p = torch.tensor(PROBABILITIES, dtype=torch.float64)
    others = x.scatter(1, target[:, None], -torch.inf).logsumexp(1)
    x.scatter_(1, target[:, None], (others + torch.log(p / (1 - p)))[:, None])
    return x.to(dtype).to(device), target.to(device)


def oracle(logits: torch.Tensor, target: torch.Tensor, count: int) -> torch.Tensor:
    """The gradient in float64, with 1 - p of the target from the other exponentials."""
    e = (logits.double() - logits.double().amax(1, keepdim=True)).exp()
    at = target[:, None]
    others = e.scatter(1, at, 0).sum(1, keepdim=True)
    total = others + e.gather(1, at)
    return (e / total).scatter(1, at, -others / total) / count


# ---------------------------------------------------------------------------------------------------
# The hazard


@pytest.mark.parametrize("vocabulary", [33, 1000, 9001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_target_gradient_of_confident_rows(vocabulary: int, dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """Within 1 % of float64 for any p and any number of rows.

    The rows come in as the factor 1 / n, which is all that they are to another row: the operator underneath takes
    the count by itself. 100003 real rows would take the interpreter minutes and show nothing else.
    """
    logits, target = confident(vocabulary, dtype, kernel_path.device)
    p = logits.double().softmax(1).gather(1, target[:, None])[:, 0]
    assert (p.cpu() - torch.tensor(PROBABILITIES)).abs().max() < 0.03, "the rows are not as confident as asked for"
    for count in COUNTS if vocabulary < 9000 else COUNTS[-1:]:
        kept = torch.tensor(count, device=kernel_path.device)
        _, gradient = gradient_of(logits, target, kept, -100, None)
        expected = oracle(logits, target, count)
        relative = (gradient.double() / expected - 1).gather(1, target[:, None]).abs().max().item()
        assert relative < 0.01, f"n = {count}: off by {relative:.2%}"


@pytest.mark.parametrize("count", [1, 3, 7, 60])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_target_gradient_through_the_mean(count: int, dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """The same with real rows, the loss scaled by an incoming gradient: two roundings, still within 1 %."""
    rows, targets = confident(65, dtype, kernel_path.device)
    logits = rows[torch.arange(count) % 5].clone().requires_grad_()
    target = targets[torch.arange(count) % 5]
    (cross_entropy(logits, target) * 3.7).backward()
    expected = oracle(logits.detach(), target, count) * 3.7
    relative = (logits.grad.double() / expected - 1).gather(1, target[:, None]).abs().max().item()
    assert relative < 0.01, f"off by {relative:.2%}"


def test_p_within_a_millionth_of_1(kernel_path: KernelPath) -> None:
    """Where fp32's 1 - p is nothing but rounding."""
    logits = torch.zeros(1, 101, device=kernel_path.device)
    logits[0, 7] = math.log(100 * 999999.0)
    target = torch.tensor([7], device=kernel_path.device)
    _, gradient = gradient_of(logits, target, None, -100, None)
    assert gradient[0, 7].item() == pytest.approx(oracle(logits, target, 1)[0, 7].item(), rel=4e-3)
    assert cross_entropy(logits, target).item() == pytest.approx(1e-6, rel=1e-3)


def test_sum_of_many_small_terms(kernel_path: KernelPath) -> None:
    """Each term is far below an ulp of the target's exponential, and below one of the running sum."""
    vocabulary = 128_256 if GPU else 40_001
    logits = torch.full((1, vocabulary), -30.0, device=kernel_path.device)
    logits[0, 5] = math.log(vocabulary * 9999.0) - 30.0
    target = torch.tensor([5], device=kernel_path.device)
    _, gradient = gradient_of(logits, target, None, -100, None)
    assert gradient[0, 5].item() == pytest.approx(oracle(logits, target, 1)[0, 5].item(), rel=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_whole_gradient_is_as_good_as_eager(dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """RMSE against float64, over rows of all kinds, no worse than that of eager's fp32 rounded once."""
    sharp, target = confident(1000, dtype, kernel_path.device)
    flat = torch.randn(5, 1000).to(sharp)
    logits, target = torch.cat((sharp, flat)), torch.cat((target, target.flip(0)))
    expected = oracle(logits, target, 10)
    errors = []
    for function in (cross_entropy, reference.cross_entropy):
        arguments = (logits.clone().requires_grad_(), target)
        gradient = gradients(function, arguments, torch.ones((), device=logits.device))[1]
        errors.append((gradient - expected).square().mean().sqrt().item())
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 511, 512, 513, 4095, 4097])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_vocabularies(vocabulary: int, reduction: str, triton_path: KernelPath) -> None:
    """Below, at and beside every block; of one token alone the loss is 0."""
    logits = torch.randn(3, vocabulary, device=triton_path.device, requires_grad=True)
    target = torch.tensor([0, vocabulary - 1, vocabulary // 2], device=triton_path.device)
    arguments = (logits, target, -100, reduction)
    expected = gradients(reference.cross_entropy, arguments)
    for one, other in zip(gradients(cross_entropy, arguments), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------------
# Rows that do not count, and rows that are bad


@pytest.mark.parametrize("ignore_index", [-100, 3, 10_000])
def test_ignored_rows(ignore_index: int, kernel_path: KernelPath) -> None:
    """No loss, no gradient, not counted, and never read: NaN in them harms nothing."""
    logits = torch.randn(6, 9, device=kernel_path.device)
    target = torch.tensor([0, ignore_index, 8, 1, ignore_index, 2], device=kernel_path.device)
    kept = target != ignore_index
    expected = F.cross_entropy(logits[kept].double(), target[kept])
    logits[~kept] = torch.nan
    logits.requires_grad_()
    loss = cross_entropy(logits, target, ignore_index)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert logits.grad is not None
    assert not logits.grad[~kept].any()
    assert logits.grad[kept].ne(0).all()


@pytest.mark.parametrize("bad", [-1, 9, -101, 2**40])
def test_bad_target(bad: int, kernel_path: KernelPath) -> None:
    """An error on a CPU; on a GPU, whose data the host does not read, NaN in the loss and in that row alone."""
    logits = torch.randn(3, 9, device=kernel_path.device, requires_grad=True)
    target = torch.tensor([4, bad, 0], device=kernel_path.device)
    if GPU is None:
        message = f"target: is {bad} at position 1; may be 0 to 8 or -100"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            cross_entropy(logits, target)
    with unchecked_indices():
        loss = cross_entropy(logits, target)
        loss.backward()
    assert loss.isnan()
    assert logits.grad is not None
    assert logits.grad[1].isnan().all()
    assert logits.grad[[0, 2]].isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 4, 8])  # the target's is 4
def test_rows_with_nan_or_infinity(value: float, place: int, kernel_path: KernelPath) -> None:
    logits = torch.randn(3, 9, device=kernel_path.device)
    logits[1, place] = value
    loss, gradient = gradients(cross_entropy, (logits.requires_grad_(), torch.tensor([0, 4, 8]).to(logits.device)))
    assert loss.isnan()
    assert gradient[1].isnan().all()
    assert gradient[[0, 2]].isfinite().all()


def test_minus_infinity_is_legal(kernel_path: KernelPath) -> None:
    """A masked token has no probability and no gradient; if it is the target, the loss is infinite."""
    logits = torch.randn(3, 1100, device=kernel_path.device)
    logits[0, :700] = -torch.inf  # a whole block and more
    logits[1, 3] = -torch.inf
    logits.requires_grad_()
    target = torch.tensor([900, 2, 1], device=kernel_path.device)
    got = gradients(cross_entropy, (logits, target))
    for one, other in zip(got, gradients(reference.cross_entropy, (logits, target)), strict=True):
        torch.testing.assert_close(one, other)
    assert not got[1][0, :700].any()
    target[1] = 3
    loss, gradient = gradients(cross_entropy, (logits, target), torch.ones((), device=logits.device))
    assert loss.item() == torch.inf
    assert gradient[1, 3].item() == pytest.approx(-1 / 3)
    assert gradient.isfinite().all()


LEAST = {dtype: torch.finfo(dtype).min for dtype in OPERATOR_DTYPES}
MASKS = (-1e9, -1e10, -1e20, -1e30, "least", -torch.inf, "mixed")


@pytest.mark.parametrize("kept", ["first", "last", "scattered"])
@pytest.mark.parametrize("vocabulary", [64, 5000])  # within a block, and beyond it
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", OPERATOR_DTYPES, ids=str)
def test_masked_logits(
    dtype: torch.dtype, mask: float | str, vocabulary: int, kept: str, triton_path: KernelPath
) -> None:
    """Whatever a mask writes into a logit has no part in loss and gradient, wherever the others lie."""
    among = [-1e9, LEAST[dtype], -torch.inf] if mask == "mixed" else [LEAST[dtype] if mask == "least" else mask]
    logits = torch.tensor(among)[torch.randint(len(among), (3, vocabulary))]
    where = {"first": slice(vocabulary // 3), "last": slice(-vocabulary // 3, None), "scattered": slice(3, None, 7)}
    columns = torch.arange(vocabulary)[where[kept]]
    logits[:, columns] = torch.randn(3, len(columns))
    logits = logits.to(dtype).to(triton_path.device).requires_grad_()
    target = columns[torch.randint(len(columns), (3,))].to(triton_path.device)
    loss = cross_entropy(logits, target)
    loss.backward()
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, target)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-6, atol=1e-6)
    assert logits.grad is not None
    assert exact.grad is not None
    rtol = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=rtol, atol=1e-7)


def test_a_row_of_minus_infinity_is_nan(kernel_path: KernelPath) -> None:
    logits = torch.full((1, 5), -torch.inf, device=kernel_path.device, requires_grad=True)
    loss, gradient = gradients(cross_entropy, (logits, torch.tensor([1], device=kernel_path.device)))
    assert loss.isnan()
    assert gradient.isnan().all()


def test_fp16_over_many_rows(kernel_path: KernelPath) -> None:
    """The mean over 100003 rows underflows in fp16; the way that the docstring names does not."""
    logits, target = confident(1000, torch.float16, kernel_path.device)
    count, loss_scale = 100003, 65536.0
    _, gradient = gradient_of(logits, target, torch.tensor(count, device=logits.device), -100, None)
    assert (gradient == 0).float().mean() > 0.9
    logits.requires_grad_()
    (cross_entropy(logits, target, reduction="sum") * (loss_scale / count)).backward()
    expected = oracle(logits.detach(), target, count) * loss_scale
    assert logits.grad is not None
    relative = (logits.grad.double() / expected - 1).gather(1, target[:, None]).abs().max().item()
    assert relative < 0.01
    assert (logits.grad == 0).float().mean() < 0.1


# ---------------------------------------------------------------------------------------------------
# Memory


def case(device: torch.device, rows: int = 7, vocabulary: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A leaf, logits made of it, and targets."""
    leaf = torch.randn(rows, vocabulary, device=device, requires_grad=True)
    return leaf, leaf * 1.0, torch.randint(vocabulary, (rows,), device=device)


@pytest.mark.parametrize("inplace", [False, True])
def test_saves_the_gradient_and_nothing_else(inplace: bool, kernel_path: KernelPath) -> None:
    _, logits, target = case(kernel_path.device)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        cross_entropy(logits, target, inplace=inplace)
    (gradient,) = packed
    assert (gradient.shape, gradient.dtype) == (logits.shape, logits.dtype)
    assert gradient.untyped_storage().nbytes() == logits.untyped_storage().nbytes()
    assert (gradient.data_ptr() == logits.data_ptr()) == inplace


@pytest.mark.parametrize("layout", ["contiguous", "column-major", "sliced"])
def test_inplace_writes_the_gradient_over_the_logits(layout: str, kernel_path: KernelPath) -> None:
    leaf, logits, target = case(kernel_path.device)
    expected = gradients(reference.cross_entropy, (leaf, target), torch.tensor(0.5, device=leaf.device))[1]
    if layout == "column-major":
        logits = leaf.t().contiguous().t()
    elif layout == "sliced":
        logits = torch.cat((leaf, leaf), 1)[:, : leaf.shape[1]]
    version = logits._version
    loss = cross_entropy(logits, target, inplace=True)
    assert logits._version > version
    torch.testing.assert_close(logits.detach(), 2 * expected)
    (loss * 0.5).backward()
    torch.testing.assert_close(leaf.grad, expected)


def test_inplace_tells_autograd(kernel_path: KernelPath) -> None:
    """Whoever saved the old logits gets an error, not a wrong gradient; so does a change of the saved gradient."""
    _, logits, target = case(kernel_path.device)
    elsewhere = logits.square().sum()
    cross_entropy(logits, target, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        elsewhere.backward()
    _, logits, target = case(kernel_path.device)
    loss = cross_entropy(logits, target, inplace=True)
    with torch.no_grad():
        logits.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inplace_without_a_gradient_writes_nothing(kernel_path: KernelPath) -> None:
    leaf, logits, target = case(kernel_path.device)
    with torch.no_grad():
        cross_entropy(logits, target, inplace=True)
    cross_entropy(logits.detach(), target, inplace=True)
    assert torch.equal(logits, leaf)


SHARED = {
    "rows": lambda x: x[:1].expand(4, 9),
    "columns": lambda x: x[:4, :1].expand(4, 9),
    "windows": lambda x: x.flatten().unfold(0, 9, 1)[:4],
    "windows, transposed": lambda x: x.flatten().unfold(0, 4, 1)[:9].t(),
    "windows that meet": lambda x: x.flatten().unfold(0, 9, 8)[:4],
}


@pytest.mark.parametrize("layout", list(SHARED))
def test_inplace_refuses_shared_memory(layout: str, kernel_path: KernelPath) -> None:
    logits = SHARED[layout](torch.randn(5, 9, device=kernel_path.device, requires_grad=True) * 1.0)
    with pytest.raises(ValueError, match=r"^logits: elements share memory"):
        cross_entropy(logits, torch.zeros(4, dtype=torch.int64, device=kernel_path.device), inplace=True)


@pytest.mark.parametrize("shape", [(4, 9), (1, 9), (4, 1), (1, 1), (0, 9)])
def test_inplace_takes_what_lies_apart(shape: tuple[int, int], kernel_path: KernelPath) -> None:
    rows, columns = shape
    around = torch.randn(2 * rows + 1, 2 * columns + 1, device=kernel_path.device, requires_grad=True) * 1.0
    target = torch.zeros(rows, dtype=torch.int64, device=kernel_path.device)
    for logits in (around[1::2, 1::2], around.t().contiguous().t()[1::2, :columns], around[:rows, :columns]):
        cross_entropy(logits * 1.0, target, inplace=True)
        cross_entropy(logits, target, inplace=True)


@pytest.mark.parametrize("inplace", [False, True])
def test_backward_again(inplace: bool, kernel_path: KernelPath) -> None:
    """With retain_graph each backward applies its own incoming gradient to the same saved one, and aliases nothing."""
    leaf, logits, target = case(kernel_path.device)
    expected = gradients(reference.cross_entropy, (leaf, target), torch.ones((), device=leaf.device))[1]
    loss = cross_entropy(logits, target, inplace=inplace)
    results = []
    for factor, keep in ((3.0, True), (0.0, True), (1.0, True), (0.5, False)):
        (gradient,) = torch.autograd.grad(loss, logits, torch.tensor(factor, device=loss.device), retain_graph=keep)
        results.append((factor, gradient))
    for factor, gradient in results:
        torch.testing.assert_close(gradient, factor * expected)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_double_backward_is_refused(compiled_path: KernelPath) -> None:
    leaf, logits, target = case(compiled_path.device)
    factor = torch.ones((), device=leaf.device, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^cross_entropy: its gradient was asked for with create_graph=True"):
        torch.autograd.grad(cross_entropy(logits, target) * factor, leaf, create_graph=True)


def test_backward_of_a_plain_loss_copies_nothing(triton_path: KernelPath) -> None:
    """The gradient that arrives is the one that was saved: no second tensor of the logits' size."""
    _, logits, target = case(triton_path.device)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        loss = cross_entropy(logits, target)
    arrived: list[torch.Tensor] = []
    logits.register_hook(arrived.append)
    loss.backward()
    assert arrived[0].data_ptr() == packed[0].data_ptr()


@pytest.mark.parametrize("inplace", [False, True])
def test_compiled(inplace: bool, compiled_path: KernelPath) -> None:
    """In one graph, in place too, with the same gradients."""
    torch._dynamo.reset()

    def step(leaf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(leaf * 1.0, target, inplace=inplace)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    leaf, _, target = case(compiled_path.device)
    for one, other in zip(gradients(compiled, (leaf, target)), gradients(step, (leaf, target)), strict=True):
        assert torch.equal(one, other)


# ---------------------------------------------------------------------------------------------------
# Wrong arguments

LOGITS, TARGET = torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_logits_of_sequences(reduction: str, inplace: bool, kernel_path: KernelPath) -> None:
    """(B, S, V) and (B, S): the loss and gradient of their rows, and the form of the targets."""
    leaf = torch.randn(3, 4, 9, device=kernel_path.device).requires_grad_()
    target = torch.randint(9, (3, 4), device=leaf.device)
    target[1, 2] = -100
    logits = leaf * 1.0
    how: dict[str, Any] = {"reduction": reduction, "lse_square_scale": 1e-2, "return_z_loss": True}
    losses = cross_entropy(logits, target, inplace=inplace, **how)
    rows = cross_entropy(leaf.flatten(0, 1), target.flatten(), **how)
    for one, other, right in zip(losses, rows, reference.cross_entropy(leaf, target, **how), strict=True):
        assert one.shape == right.shape == (target.shape if reduction == "none" else ())
        assert torch.equal(one, other.view(one.shape))
        torch.testing.assert_close(one, right)
    upstream = torch.rand(losses[0].shape, device=leaf.device)
    (got,) = torch.autograd.grad(losses[0], leaf, upstream)
    (expected,) = torch.autograd.grad(rows[0], leaf, upstream.view(rows[0].shape))
    assert torch.equal(got, expected)
    assert torch.equal(logits.detach(), leaf.detach()) != inplace


def test_dimensions_that_are_not_one_in_memory(kernel_path: KernelPath) -> None:
    leaf = torch.randn(4, 3, 9, device=kernel_path.device).requires_grad_()
    logits, target = (leaf * 1.0).transpose(0, 1), torch.randint(9, (3, 4), device=leaf.device)
    torch.testing.assert_close(cross_entropy(logits, target), reference.cross_entropy(logits, target))
    with pytest.raises(ValueError, match=r"^logits: dimensions before the last do not lie in memory as one"):
        cross_entropy(logits, target, inplace=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": LOGITS.double()}, "logits: is torch.float64; may be torch.bfloat16, "),
        ({"logits": LOGITS[0]}, "logits: has 1 dimensions, shape (9,); may have 2"),
        ({"logits": [0.0]}, "logits: is a list; may be a tensor"),
        ({"logits": LOGITS.to_sparse()}, "logits: is torch.sparse_coo; may be torch.strided: to_dense() makes it so"),
        ({"target": TARGET.float()}, "target: is torch.float32; may be torch.int64, torch.int32"),
        ({"logits": LOGITS[None]}, "target: has shape (4,); may have (1, 4), that of logits without its last"),
        ({"target": TARGET[:3]}, "target: has 3 elements; may have 4, one for each row of logits"),
        ({"target": TARGET[None]}, "target: has 2 dimensions, shape (1, 4); may have 1"),
        ({"target": TARGET.to("meta")}, "target: is on meta; may be on cpu"),
        ({"reduction": "max"}, "reduction: is 'max'; may be 'mean', 'sum', 'none'"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        cross_entropy(**{"logits": LOGITS, "target": TARGET, **change})
