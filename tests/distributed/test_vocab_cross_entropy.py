"""Cross entropy of a vocabulary over two ranks: loss and gradient are those of whole rows on one.

What one process alone does, by kernels and by torch's operators, is asked of both paths.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from kernels.arguments import DTYPES
from kernels.hardware import hardware_of
from tests.distributed.ranks import Ranks
from tests.kernels import elsewhere
from tests.kernels.paths import COMPILING, GPU, VARIABLE
from tests.kernels.vocabulary import count_gradient, count_row_parts, path, reference, vocab_parallel_cross_entropy
from tests.nursery import Nursery

pytestmark = COMPILING
ROWS, VOCABULARY = 9, 300


@pytest.fixture(params=["triton"] if GPU else ["eager", "interpreter"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Of each path that runs here."""
    monkeypatch.setenv(VARIABLE, "1") if request.param == "interpreter" else monkeypatch.delenv(VARIABLE, raising=False)
    assert path(GPU or "cpu") == request.param
    return torch.device(GPU or "cpu")


def drawn(size: float = 1.0) -> tuple[Tensor, Tensor]:
    """logits and target: an ignored row, a row that is certain, one of a masked half, one of nothing but masks."""
    logits, target = size * torch.randn(ROWS, VOCABULARY), torch.randint(VOCABULARY, (ROWS,))
    target[2] = -100
    logits[3, target[3]] = logits[3].max() + 40
    logits[4, 150:], target[4] = -torch.inf, 7
    return logits, target


def run(function: Any, logits: Tensor, *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    loss = function(logits, *given, **options)
    (gradient,) = torch.autograd.grad(loss, logits, torch.ones_like(loss))
    return loss.detach(), gradient


def assert_close(got: tuple[Tensor, Tensor], true: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(got[0].double(), true[0].double(), rtol=2e-6, atol=2e-6)
    eps = torch.finfo(got[1].dtype).eps
    torch.testing.assert_close(got[1].double(), true[1].double(), rtol=max(eps, 2e-5), atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_process_has_the_plain_loss(dtype: torch.dtype, reduction: str, device: torch.device) -> None:
    for size in (1.0, 30.0):
        logits, target = (each.to(device) for each in drawn(size))
        logits = logits.to(dtype)
        got = run(vocab_parallel_cross_entropy, logits, target, reduction=reduction)
        assert_close(got, run(reference, logits.double(), target, reduction=reduction))
        assert not got[1][2].any()
        assert (got[0].dtype, got[1].dtype) == (torch.float32, dtype)


def test_layouts_and_numbers_of_32_bits(device: torch.device) -> None:
    logits, target = (each.to(device) for each in drawn())
    plain = run(vocab_parallel_cross_entropy, logits, target)
    for other in (logits.t().contiguous().t(), torch.stack((logits, logits), -1)[..., 0]):
        assert_close(run(vocab_parallel_cross_entropy, other, target.int()), plain)
    losses, gradient = run(vocab_parallel_cross_entropy, logits, target, reduction="none")
    loss, of_sequences = run(
        vocab_parallel_cross_entropy, logits.view(3, 3, -1).mT.contiguous().mT, target.view(3, 3), reduction="none"
    )
    assert loss.equal(losses.view(3, 3))
    assert of_sequences.equal(gradient.view(3, 3, -1))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the interpreter's numpy, of Inf - Inf
def test_rows_that_have_no_loss(device: torch.device) -> None:
    """NaN, infinity and targets of nobody give NaN in their row alone; ignored ones are not even read."""
    logits, target = (each.to(device) for each in drawn())
    logits[0, 5], logits[1, 7], logits[2], target[5] = torch.nan, torch.inf, torch.nan, VOCABULARY
    loss, gradient = run(vocab_parallel_cross_entropy, logits, target, reduction="none")
    bad = torch.tensor([0, 1, 5], device=device)
    assert loss.isnan().nonzero()[:, 0].equal(bad)
    assert gradient.isnan().any(1).nonzero()[:, 0].equal(bad)
    assert not gradient[2].any()
    loss, gradient = run(vocab_parallel_cross_entropy, logits, torch.full_like(target, -100))
    assert loss == 0
    assert not gradient.any()


def test_no_row_and_no_column(device: torch.device) -> None:
    """A rank may have no column: the others have the rest."""
    logits, target = (each.to(device) for each in drawn())
    assert run(vocab_parallel_cross_entropy, logits[:0], target[:0])[0] == 0
    parts = count_row_parts(logits[:, :0], target, 0, -100)
    assert parts[0, 0] == -torch.inf
    assert not parts[1:].any()


def test_opcheck(device: torch.device) -> None:
    logits, target = (each.to(device) for each in drawn())
    torch.library.opcheck(torch.ops.perfguard_kernels.vocab_row_parts.default, (logits, target, 0, -100))
    parts, factor = count_row_parts(logits, target, 0, -100), torch.ones(ROWS, device=device)
    factor[2] = 0
    given = logits, target, torch.stack((parts[0], parts[1], parts[1] + 1)), factor, 0
    torch.library.opcheck(torch.ops.perfguard_kernels.vocab_gradient.default, given)
    assert not count_gradient(*given)[2].any()


def whole_graph(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def test_compiles_whole(device: torch.device) -> None:
    logits, target = (each.to(device) for each in drawn())
    expected = run(vocab_parallel_cross_entropy, logits, target)
    for one, other in zip(run(whole_graph(vocab_parallel_cross_entropy), logits, target), expected, strict=True):
        assert one.equal(other)


def test_wrong_arguments() -> None:
    logits, target = drawn()
    with pytest.raises(ValueError, match=r"^reduction: is 'all'; may be 'mean', 'sum', 'none'$"):
        vocab_parallel_cross_entropy(logits, target, reduction="all")
    with pytest.raises(ValueError, match=r"^target: has 3 elements; may have 9"):
        vocab_parallel_cross_entropy(logits, target[:3])
    with pytest.raises(ValueError, match=r"^target: has shape \(9,\); may have \(3, 3\), that of logits without"):
        vocab_parallel_cross_entropy(logits.view(3, 3, -1), target)
    with pytest.raises(RuntimeError, match=r"^vocab_parallel_cross_entropy: is differentiated inside a transform"):
        torch.func.grad(vocab_parallel_cross_entropy)(logits, target)
    loss = vocab_parallel_cross_entropy(logits.requires_grad_(), target)
    with pytest.raises(
        RuntimeError, match=r"^vocab_parallel_cross_entropy: its gradient was asked for with create_graph"
    ):
        torch.autograd.grad(loss, logits, create_graph=True)


# ---------------------------------------------------------------------------------------------------
# Over ranks


def checked(
    rank: int, ranks: int, first: int, reduction: str, compiled: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's loss and gradient of its columns, `first` of which are rank 0's; the truth of whole rows."""
    torch.manual_seed(0)
    logits, target = drawn(8.0)
    own = slice(0, first) if rank == 0 else slice(first, VOCABULARY)
    start = None if first * ranks == VOCABULARY else own.start
    how = {"reduction": reduction, "start": start}
    function = whole_graph(vocab_parallel_cross_entropy) if compiled else vocab_parallel_cross_entropy
    loss, gradient = run(function, logits[:, own], target, dist.group.WORLD, **how)
    true, whole = run(reference, logits.double(), target, reduction=reduction)
    return loss, gradient, true, whole[:, own]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("first", [150, 100, 300], ids=["even", "uneven", "a rank without"])
def test_two_ranks_have_the_loss_of_whole_rows(two_ranks: Ranks, first: int, reduction: str) -> None:
    """One half of a row may be masked, and its target on either rank."""
    found = two_ranks.run(checked, first, reduction)
    for loss, gradient, true, expected in found:
        assert_close((loss, gradient), (true, expected))
    assert found[0][0].equal(found[1][0])


@pytest.mark.nightly  # a compiler in each process
def test_two_ranks_compiled(two_ranks: Ranks) -> None:
    """One graph, collectives among it."""
    for loss, gradient, true, expected in two_ranks.run(checked, 150, "mean", True):
        assert_close((loss, gradient), (true, expected))


@pytest.mark.parametrize(
    "arch", ["sm_90", *(pytest.param(a, marks=pytest.mark.nightly) for a in ("sm_100", "gfx942", "gfx950"))]
)
def test_compiles_without_spills(arch: str, nursery: Nursery) -> None:
    found = elsewhere.compiled(nursery, "targets", "vocabulary", arch)
    assert [one["kernel"] for one in found] == ["_count", "_differentiate"]
    most = hardware_of(arch).shared_memory_bytes
    assert most is not None
    spilled = ("stack_bytes",) if arch.startswith("sm_") else ("vgpr_spill_count", "private_segment_fixed_size")
    for one in found:
        assert not any(one[name] for name in spilled), one
        assert one["shared_bytes"] <= most, one
        assert one.get("wide_loads") != 0, one
