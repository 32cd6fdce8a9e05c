"""Derived inputs as a user meets them: a wrong kernel is found without a test more, and its input can be kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

from perfguard import ExitStatus
from tests.flows.conftest import Project

SOFTMAX = """
import torch
import perfguard as guard

def softmax(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)

def test_softmax(perfguard):
    x = torch.randn(8, 64)
    perfguard(softmax, {x}, reference=lambda x: torch.softmax(x, -1){more})
"""


def test_an_overflow_that_no_test_asks_for_is_wrong_and_its_input_can_be_kept(project: Project) -> None:
    project.configure(device="cpu", case_seconds=0.05, extra_seconds=20.0)
    project.test_file(SOFTMAX.format(x="x", more=""))
    accused = project.run()
    accused.assert_outcomes(failed=1)
    # pytest's summary says it again where CI is set.
    (kept,) = set(re.findall(r"perfguard\.(derived\(x0, \"[^\"]*\"\))", accused.stdout.str()))
    snippet = f"guard.{kept}".replace("x0", "x")
    project.test_file(SOFTMAX.format(x=snippet, more=", hard=False"))
    project.run().assert_outcomes(failed=1)  # by the plain check, as the input is now the test's own
    project.test_file(SOFTMAX.format(x="x", more=", hard=False"))
    project.run().assert_outcomes(passed=1)


def test_a_measured_run_counts_them_and_records_nothing_of_a_wrong_case(project: Project) -> None:
    project.configure(device="cpu", case_seconds=0.05, extra_seconds=20.0)
    project.test_file(SOFTMAX.format(x="x", more=""))
    accused = project.guard("--perfguard-lane=cpu", "--perfguard-update=new")
    assert accused.ret == ExitStatus.WRONG
    accused.stdout.fnmatch_lines(["1 WRONG; *", "WRONG  *hard input, argument 0 (*"])
    accused.stdout.no_fnmatch_line("*metrics new*")
    assert not (project.path / "baselines").exists()
    project.test_file(SOFTMAX.format(x="x", more="").replace("x.exp()", "(x - x.amax(-1, keepdim=True)).exp()"))
    right = project.guard("--perfguard-lane=cpu")
    assert right.ret == ExitStatus.PASSED
    right.stdout.re_match_lines([r".*hard inputs: \d+ ran"])


def test_what_does_not_fit_is_named_by_kind_and_a_fault_stays_one_in_the_next_run(project: Project) -> None:
    """With next to no budget each kind has at most one turn in a run."""
    project.configure(device="cpu", case_seconds=0.05, extra_seconds=1e-9)
    kinds = ["values", "non-finite", "layouts", "gradients", "sequences", "modes", "dtypes"]
    sizes = f', hard=guard.Hard(without={kinds}, reason="-")'
    project.test_file(SOFTMAX.format(x="x", more=sizes))
    right = project.guard("--perfguard-lane=cpu")
    assert right.ret == ExitStatus.PASSED
    tried = json.loads((project.path / ".perfguard" / "cache" / "turns.json").read_text())
    assert [*tried] == ["cpu test_suite::softmax"]  # on any processor
    right.stdout.re_match_lines([r".*hard inputs: 1 (ran|left out), (\d+) skipped: time budget \(\2 sizes\)"])
    project.test_file(SOFTMAX.format(x="x", more=sizes).replace("x.exp() /", "x.exp() * (x.shape == (8, 64)) /"))
    told = []
    for _ in range(3):  # The first turn may be that of a tensor without elements, which no fault shows.
        accused = project.guard("--perfguard-lane=cpu")
        assert accused.ret == (ExitStatus.WRONG if told or accused.ret else ExitStatus.PASSED)
        told += [line for line in accused.outlines if line.startswith("WRONG")]
    assert len(told) >= 2
    assert told[0] == told[1]
    assert "hard input, argument 0 (" in told[0]


def test_kinds_are_left_out_with_a_reason(project: Project) -> None:
    project.configure(device="cpu", case_seconds=0.05, extra_seconds=20.0)
    values = ', hard=guard.Hard(without=["values", "non-finite"]'
    project.test_file(SOFTMAX.format(x="x", more=f"{values}, reason='logits are below 80')"))
    project.run().assert_outcomes(passed=1)
    project.test_file(SOFTMAX.format(x="x", more=f"{values})"))
    refused = project.run()
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*Hard: say why*"])


def test_processes_that_measure_for_another_run_derive_nothing(recorded: Project) -> None:
    """They are there for times; the run itself has looked."""
    recorded.configure(extra_seconds=1.0)
    seen = recorded.path.parent / "seen.txt"
    note = f"    if any('perfguard-session' in a for a in sys.argv): open({str(seen)!r}, 'a').write(f'{{len(x)}} ')\n"
    kernel = (recorded.path / "kernel.py").read_text()
    (recorded.path / "kernel.py").write_text("import sys\n" + kernel.replace("    out =", f"{note}    out ="))
    recorded.commit()  # the base notes it, too
    recorded.kernel(us=60)
    kernel = (recorded.path / "kernel.py").read_text()
    (recorded.path / "kernel.py").write_text("import sys\n" + kernel.replace("    out =", f"{note}    out ="))
    assert recorded.guard("-k", "64").ret == ExitStatus.REGRESSED
    assert set(seen.read_text().split()) == {"64"}


DOCUMENTED = Path(__file__).parents[2] / "docs" / "hard-inputs.md"


def test_the_documented_grouped_kernel_runs_and_its_integers_are_tried(project: Project) -> None:
    (example,) = re.findall(r"```python\n(# tests/test_experts.py\n.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    project.configure(device="cpu", extra_seconds=20.0)
    project.test_file(example)
    project.run().assert_outcomes(passed=1)

    project.test_file(example.replace("right=True", "right=False"))
    misplaced = project.run()
    misplaced.assert_outcomes(failed=1)
    misplaced.stdout.fnmatch_lines(["*; in group 2 of 4 (16 rows)"])

    # Right as long as no group is empty, as in the given ends, and as no token occurs more often than there.
    for was, becomes in (("searchsorted(ends,", "searchsorted(ends.unique(),"), ("x[token]", "few(x, token)")):
        few = "def few(x, token):\n    return x[token] * (token.bincount().max() < 33)\n"
        project.test_file(example.replace(was, becomes) + few)
        accused = project.run()
        accused.assert_outcomes(failed=1)
        accused.stdout.fnmatch_lines(["*hard input, argument *"])
