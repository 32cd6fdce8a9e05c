"""A stranger's kernels, guarded on a machine without a GPU: Liger's functions, forward and backward, in Triton's
interpreter. Recorded once and quiet; three of the functions are wrong on inputs that no test of theirs has.

The project is made here: a copy of the installed liger-kernel's files, so that they can be edited, and eight tests.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project
from tests.nursery import Nursery

FILES = ("cross_entropy", "kl_div", "relu_squared", "rope", "softmax", "sparsemax", "swiglu", "tvd", "utils")
TESTS = """
import perfguard as guard
import torch
import torch.nn.functional as F
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.kl_div import LigerKLDivLossFunction
from liger_kernel.ops.relu_squared import LigerReLUSquaredFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.softmax import LigerSoftmaxFunction
from liger_kernel.ops.sparsemax import LigerSparsemaxFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from liger_kernel.ops.tvd import LigerTVDLossFunction


def logits(*shape):
    return torch.randn(*shape, requires_grad=True)


def probabilities(*shape, grad=False):
    return torch.randn(*shape).softmax(-1).requires_grad_(grad)


def test_cross_entropy(perfguard):
    targets = torch.tensor([1, 7, -100, 49, 0])  # the gradient takes the memory of the logits
    perfguard(lambda x, t: LigerCrossEntropyFunction.apply(x, t, None)[0], logits(5, 50), targets,
              reference=F.cross_entropy, clobbers=(0,),
              hard=guard.Hard(without=["layouts"], reason="logits that are not contiguous have no gradient"))


def test_kl_div(perfguard):
    perfguard(LigerKLDivLossFunction.apply, probabilities(5, 48).log().requires_grad_(), probabilities(5, 48),
              reference=lambda x, y: F.kl_div(x, y, reduction="batchmean"))


def test_relu_squared(perfguard):
    perfguard(LigerReLUSquaredFunction.apply, logits(5, 48), reference=lambda x: F.relu(x) ** 2,
              hard=guard.Hard(without=["non-finite"], reason="NaN becomes 0"))


def rotated(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def test_rope(perfguard):
    angles = torch.randn(1, 6, 8).repeat(1, 1, 2)
    perfguard(LigerRopeFunction.apply, logits(1, 4, 6, 16), logits(1, 2, 6, 16), angles.cos(), angles.sin(),
              reference=lambda q, k, cos, sin: (rotated(q, cos, sin), rotated(k, cos, sin)),
              hard=guard.Hard(without=["sizes"], reason="a single head is rotated in place"))


def test_softmax(perfguard):
    perfguard(LigerSoftmaxFunction.apply, logits(5, 48), reference=lambda x: x.softmax(-1))


def sparsemax(x):
    ordered = x.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    sums = ordered.cumsum(-1)
    count = (1 + ranks * ordered > sums).sum(-1, keepdim=True)
    return F.relu(x - (sums.gather(-1, count - 1) - 1) / count)


def test_sparsemax(perfguard):
    perfguard(lambda x: LigerSparsemaxFunction.apply(x, -1), logits(5, 48), reference=sparsemax)


def test_swiglu(perfguard):
    perfguard(LigerSiLUMulFunction.apply, logits(5, 48), logits(5, 48), reference=lambda a, b: F.silu(a) * b,
              clobbers=(0, 1))  # the gradients take their memory


def test_tvd(perfguard):
    perfguard(LigerTVDLossFunction.apply, probabilities(5, 48, grad=True), probabilities(5, 48),
              reference=lambda p, q: (p - q).abs().sum() / (2 * len(p)))
"""


@pytest.fixture
def liger(project: Project, monkeypatch: pytest.MonkeyPatch, interpreting: Nursery) -> Project:
    spec = importlib.util.find_spec("liger_kernel")
    if spec is None or spec.origin is None:
        pytest.skip("liger-kernel is not installed: pip install -c constraints.txt -e '.[kernels,dev]'")
    source, target = Path(spec.origin).parent, project.path / "liger_kernel"
    (target / "ops").mkdir(parents=True)
    for package in (target, target / "ops"):
        (package / "__init__.py").write_text("")
    shutil.copy(source / "utils.py", target)
    for name in FILES:
        shutil.copy(source / "ops" / f"{name}.py", target / "ops")
    (project.path / "conftest.py").write_text('import os\n\nos.environ["TRITON_INTERPRET"] = "1"\n')
    project.test_file(TESTS)
    project.configure(device="cpu", targets=[])
    monkeypatch.setattr(sys, "executable", interpreting.python)
    return project


LANE = "--perfguard-lane=cpu"


@pytest.mark.nightly  # The next test runs the same kernels, and each class of the corpus is planted there.
def test_liger_is_recorded_and_quiet(liger: Project) -> None:
    liger.configure(extra_seconds=0)
    recorded = liger.guard(LANE, "--perfguard-update=new")
    assert recorded.ret == ExitStatus.PASSED, recorded.stdout.str()
    recorded.assert_outcomes(passed=8)
    quiet = liger.guard(LANE)
    assert quiet.ret == ExitStatus.PASSED, quiet.stdout.str()
    quiet.stdout.fnmatch_lines(["*16 of 16 cases guarded*"])


def test_three_of_them_are_wrong_on_inputs_that_their_tests_do_not_have(liger: Project) -> None:
    """Each looked into: a contiguous copy of logits that is made without a gradient is not asked for one; a maximum
    that leaves NaN out; heads that are rotated where they lie, which is in a copy unless there is one head."""
    liger.test_file(re.sub(r",\s+hard=guard.Hard\(.*?\)", "", TESTS))
    liger.configure(extra_seconds=40.0)
    found = liger.run("-k", "cross_entropy or relu_squared or rope")
    found.assert_outcomes(failed=3)
    said = re.sub(r"\s+", " ", found.stdout.str())
    assert "hard input, argument 0 (transposed): gradient of argument 0: RMSE" in said
    assert "of 240 elements are NaN or Inf unlike the oracle's; got 0, want nan" in said
    assert re.search(r"dim 1 cut to 1\): argument \d was modified", said)
