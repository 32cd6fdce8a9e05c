"""Tests on several ranks: one launch for all of them, one report and one verdict for each, and an end for each hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfguard.measure.devices import find_devices
from perfguard.model.records import TimedEntry, Word
from perfguard.session.device_lock import FOLDER, DeviceLock
from perfguard.store.baseline_files import Store
from tests.flows.conftest import Project

HEAD = """
import os, signal, time
import pytest, torch
import torch.distributed as dist

def summed(x):
    out = x.clone()
    dist.all_reduce(out)
    return out

"""

OUTCOMES = """
@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept")
    yield path
    assert path.is_dir()  # ranks have not emptied it

def test_uses_a_folder(kept):
    pass

@pytest.mark.perfguard(ranks=2)
def test_passes(perfguard):
    mesh = perfguard.mesh(dp=1, tp=2)
    assert mesh.mesh_dim_names == ("dp", "tp") and mesh.get_local_rank("tp") == perfguard.rank == dist.get_rank()
    perfguard(summed, torch.randn(4), reference=lambda x: 2 * x)

@pytest.mark.perfguard(ranks=2)
def test_fails_on_one(perfguard):
    assert perfguard.rank == 0, "only rank 0 is right"

@pytest.mark.perfguard(ranks=2)
def test_is_wrong_on_one(perfguard):
    perfguard(lambda x: summed(x) + perfguard.rank, torch.ones(4), reference=lambda x: 2 * x)

@pytest.mark.perfguard(ranks=2)
@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail(perfguard):
    assert perfguard.ranks == 3

@pytest.mark.perfguard(ranks=2)
@pytest.mark.skipif(True, reason="not today")
def test_is_skipped(perfguard):
    raise AssertionError

@pytest.mark.perfguard(ranks=2)
def test_is_skipped_on_one(perfguard):
    if perfguard.rank == 1:
        pytest.skip("only here")

@pytest.mark.perfguard(ranks=2)
def test_dies(perfguard):
    if perfguard.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    summed(torch.ones(2))

@pytest.mark.perfguard(ranks=2)
def test_crashes(perfguard):
    if perfguard.rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    summed(torch.ones(2))

@pytest.mark.perfguard(ranks=2)
def test_leaves_the_others(perfguard):
    if perfguard.rank == 1:
        raise ValueError("no batch left")
    summed(torch.ones(2))

@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("n", [3, 5])
def test_goes_on(perfguard, n, tmp_path):
    (tmp_path / "mine").touch(exist_ok=False)
    perfguard(summed, torch.ones(n), reference=lambda x: 2 * x)

def test_of_one_process(perfguard, kept):
    assert (perfguard.rank, perfguard.ranks) == (0, 1)
    with pytest.raises(ValueError, match=r"mesh\\(dp=2\\).*runs on one rank"):
        perfguard.mesh(dp=2)
"""


def test_every_test_has_one_outcome_that_names_ranks(project: Project) -> None:
    project.configure(device="cpu")
    project.test_file(HEAD + OUTCOMES)
    ran = project.run("-v", "-rA")
    ran.assert_outcomes(passed=5, failed=6, xfailed=1, skipped=1)
    ran.stdout.fnmatch_lines_random(
        [
            "FAILED *::test_fails_on_one - rank 1 of 2: AssertionError: only r*",
            "*output: *worst at*(on rank 1 of 2)",
            "*skipped on rank 1 of 2 only; every rank must make the same calls",
            "rank 1 of 2: killed by SIGKILL in the middle of the test",
            "rank 0 of 2: killed by SIGSEGV in the middle of the test",
            '  File "*test_suite.py", line 59 in test_crashes',
            "FAILED *::test_leaves_the_others - rank 1 of 2: ValueError: *",
            "rank 1 had left the test: rank 1 of 2 did not come to all_reduce",
            "  rank 0: in the test's own code, at test_suite.py:* in summed; waits in #1 all_reduce of [[][[]2[]][]]",
            "PASSED *::test_goes_on[[]5[]]",
        ]
    )


HANGS = """
@pytest.mark.perfguard(ranks=2)
def test_one_rank_is_late(perfguard):
    dist.barrier()
    if perfguard.rank == 1:
        time.sleep(600)
    summed(torch.ones(4))

@pytest.mark.perfguard(ranks=2)
def test_ranks_make_other_calls(perfguard):
    x = torch.ones(3)
    dist.all_reduce(x) if perfguard.rank == 0 else dist.broadcast(x, 0)
    dist.barrier()

@pytest.mark.perfguard(ranks=2)
def test_one_rank_decides_alone(perfguard):
    if perfguard.rank == 0:
        summed(torch.ones(5))

@pytest.mark.perfguard(ranks=2)
def test_goes_on(perfguard):
    summed(torch.ones(6))
"""


def test_a_hang_ends_within_the_limit_and_names_the_rank_that_is_missed(project: Project) -> None:
    project.configure(device="cpu", case_minutes=0.05)
    project.test_file(HEAD + HANGS)
    started = time.monotonic()
    ran = project.run()
    assert time.monotonic() - started < 90
    ran.assert_outcomes(passed=1, failed=3)
    ran.stdout.fnmatch_lines(
        [
            "*_ test_one_rank_is_late _*",
            "took longer than 0.05 minutes: rank 1 of 2 did not come to all_reduce",
            "  rank 0: *test_suite.py:8 in summed; waits in #2 all_reduce of *4*",
            "  rank 1: *test_suite.py:16 in test_one_rank_is_late; last collective: #1 barrier*",
            "stack of rank 1, the innermost call last:",
            "    time.sleep(600)",
            "*_ test_ranks_make_other_calls _*",
            "took longer than 0.05 minutes: *",
            "*_ test_one_rank_decides_alone _*",
            "took longer than 0.05 minutes: rank 1 of 2 did not come to all_reduce",
            "  rank 1: ended the test: passed; issued no collective",
        ]
    )


GUARDED = """
def doubled(x):
    out = summed(x)
{more}
    return out

@pytest.mark.perfguard(ranks=2)
def test_sum(perfguard):
    perfguard.mesh(dp=2)
    perfguard(doubled, torch.ones(4, 4), reference=lambda x: 2 * x)

@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("n", [2, 3])
def test_others(perfguard, n):
    perfguard(summed, torch.ones(n), reference=lambda x: 2 * x)

def test_alone(perfguard):
    perfguard(lambda x: x + 1, torch.ones(3), reference=lambda x: x + 1)
"""
LANE = "--perfguard-lane=cpu"


def test_cases_of_several_ranks_are_recorded_and_judged_as_one(project: Project) -> None:
    project.configure(device="cpu")
    project.test_file(HEAD + GUARDED.format(more=""))
    recorded = project.guard(LANE, "--perfguard-update=new", "-W", "error")
    recorded.assert_outcomes(passed=4)
    assert recorded.ret == 0  # nothing that launches leave open is an error of the user's suite
    baseline = (project.path / "baselines" / "cpu" / "test_suite.yaml").read_text()
    assert "all_reduce ranks float32" in baseline
    assert "all_reduce dp float32" in baseline
    assert "inputs: dp 2; float32[4,4]" in baseline
    assert "rank 0" not in baseline  # every reading is one for both ranks
    project.commit()

    more = "    dist.all_reduce(out)\n    out /= 2"
    project.test_file(HEAD + GUARDED.format(more=more))
    moved = project.guard(LANE)
    moved.assert_outcomes(passed=3, failed=1)
    moved.stdout.fnmatch_lines(["*CHANGED collectives*", "*+ all_reduce dp float32*"])
    assert moved.ret == 10

    # What one rank alone does more would be a hang sooner or later.
    more = "    if dist.get_rank() == 1:\n        dist.all_reduce(out[:0].clone(), group=ONE)"
    one = HEAD + "ONE = None\n" + GUARDED.format(more=more)
    one = one.replace(
        "    perfguard.mesh(dp=2)\n", "    global ONE\n    ONE = perfguard.mesh(dp=2, tp=1).get_group('tp')\n"
    )
    late = """
@pytest.mark.perfguard(ranks=2)
def test_late(perfguard):
    name = dist.group.WORLD.group_name
    early = lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", name) + 1
    perfguard(early, torch.ones(4), reference=lambda x: 4 * x)
"""
    project.test_file(one + late)
    apart = project.guard(LANE, "-k", "test_sum or test_late")
    apart.assert_outcomes(failed=2)
    apart.stdout.fnmatch_lines(["*WRONG unwaited", "*unwaited: all_reduce ranks float32 at test_suite.py:*"])
    apart.stdout.fnmatch_lines(["*WRONG collectives", "*ranks disagree: *all_reduce*on rank 1 of 2*"])
    assert apart.ret == 11


def test_under_torchrun_rank_0_alone_speaks(project: Project) -> None:
    project.configure(device="cpu")
    source = """
@pytest.mark.perfguard(ranks=2)
def test_fails_on_one(perfguard):
    assert perfguard.rank == 0
"""
    project.test_file(HEAD + GUARDED.format(more="").replace("ranks=2)\n@", "ranks=3)\n@") + source)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pytest", "--perfguard", LANE],
        cwd=project.path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("test session starts") == 1
    assert "FAILED test_suite.py::test_fails_on_one - rank 1 of 2: assert 1 == 0" in done.stdout
    assert "1 failed, 1 passed, 3 deselected" in done.stdout
    assert "1 BROKEN, 1 NEW" in done.stdout


def test_ranks_must_have_the_same_tests(project: Project) -> None:
    project.configure(device="cpu")
    source = """
@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("n", [0, int(os.environ.get("RANK", 0))])
def test_of_rank(n):
    assert n >= 0
"""
    project.test_file(HEAD + source)
    ran = project.run()
    ran.assert_outcomes(failed=2)
    ran.stdout.fnmatch_lines(["*ranks 0 and 1 collected different tests: only one of them has *test_of_rank[[]*"])


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("4", "(4,): give the number by its name: ranks=2, or layout=64"),
        ("rank=4", "(rank=…): no such argument; known: ranks, layout"),
        ("ranks=0", "(ranks=0): give a number of ranks, 1 or more"),
        ("ranks=2, layout=8", "(ranks=…, layout=…): a test runs on real ranks or as one of a layout; leave one out"),
    ],
)
def test_a_mark_that_means_nothing_ends_the_run(project: Project, mark: str, said: str) -> None:
    project.test_file(f"import pytest\n\n@pytest.mark.perfguard({mark})\ndef test_a():\n    pass\n")
    ran = project.run()
    assert ran.ret == 4
    assert f"test_suite.py::test_a: @pytest.mark.perfguard{said}" in ran.stderr.str()


def test_x_ends_all_ranks_at_the_first_failure(project: Project) -> None:
    project.configure(device="cpu")
    source = """
@pytest.mark.perfguard(ranks=2)
def test_fails():
    assert dist.get_rank() == 2

@pytest.mark.perfguard(ranks=2)
def test_takes_long():
    time.sleep(600)
"""
    project.test_file(HEAD + source)
    started = time.monotonic()
    project.run("-x").assert_outcomes(failed=1)
    assert time.monotonic() - started < 60


def test_a_layout_is_one_process(project: Project) -> None:
    source = """
@pytest.mark.perfguard(layout=64)
def test_layout(perfguard):
    mesh = perfguard.mesh(dp=8, tp=8)
    assert (perfguard.rank, perfguard.ranks, dist.get_world_size()) == (0, 64, 64)
    assert dist.get_process_group_ranks(mesh.get_group("dp")) == list(range(0, 64, 8))
    whole = torch.nn.Linear(16, 8)
    copied = fully_shard(copy.deepcopy(whole), mesh=mesh["dp"])
    perfguard(copied, torch.randn(4, 16), reference=whole)

@pytest.mark.perfguard(layout=6)
def test_other_layout(perfguard):
    with pytest.raises(ValueError, match=r"mesh\\(dp=2, tp=2\\): has 4 ranks, but the test's mark has ranks=6"):
        perfguard.mesh(dp=2, tp=2)
"""
    project.test_file("import copy\nfrom torch.distributed.fsdp import fully_shard\n" + HEAD + source)
    project.run("-W", "error").assert_outcomes(passed=2)


SKIPPED = """
import os
from pathlib import Path

import pytest

if "RANK" in os.environ:
    Path(__file__).with_name(f"rank-{os.environ['RANK']}").touch()

@pytest.mark.perfguard(ranks=2)
@pytest.mark.skip(reason="not today")
def test_a(perfguard):
    raise AssertionError

@pytest.mark.skip(reason="not today")
@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("n", [1, 2])
def test_b(perfguard, n):
    raise AssertionError
"""


def test_no_rank_starts_where_every_test_is_skipped(project: Project) -> None:
    project.test_file(SKIPPED)
    for run in (project.run, project.guard):
        run("-rs").assert_outcomes(skipped=3)
        assert not list(project.path.glob("rank-*"))
    project.test_file(SKIPPED + "@pytest.mark.perfguard(ranks=2)\ndef test_c():\n    pass\n")
    project.run().assert_outcomes(skipped=3, passed=1)
    assert len(list(project.path.glob("rank-*"))) == 2


def test_workers_of_xdist_share_one_launch(project: Project) -> None:
    project.configure(device="cpu")
    source = """
@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("n", range(8))
def test_many(perfguard, n):
    with open("launched.txt", "a") as file:
        print(os.environ["TORCHELASTIC_RUN_ID"], file=file)
    assert n != 5 or perfguard.rank == 0
"""
    project.test_file(HEAD + source)
    project.run("-n", "2").assert_outcomes(passed=7, failed=1)
    assert len(set((project.path / "launched.txt").read_text().split())) == 1


def test_the_devices_of_all_ranks_are_locked(project: Project) -> None:
    project.configure(device="fake*2", lock_minutes=0)
    project.test_file(HEAD + GUARDED.format(more=""))
    with DeviceLock(find_devices("fake*2")["fake:1"], Path(os.environ["TMPDIR"]) / FOLDER) as other:
        assert other.try_acquire()
        ran = project.guard("-k", "test_sum")
    assert ran.ret == 4
    assert "still in use by process" in ran.stderr.str()


# Two simulated GPUs, of which rank 1 computes for longer. After the first launch both do.
TIMED = """
from pathlib import Path
from perfguard.testing import fake

def layer(x):
    again = 10.0 * Path("launched").exists()
    fake.launch("gemm", us=30.0 + 5.0 * dist.get_rank() + again)
    return summed(x)

@pytest.mark.perfguard(ranks=2)
def test_layer(perfguard):
    perfguard.mesh(dp=2)
    perfguard(layer, torch.ones(1000), reference=lambda x: 2 * x)
    dist.barrier()  # both have measured
    Path("launched").touch()

def test_alone(perfguard):
    fake.launch("gemm")
    perfguard(lambda x: x + 1, torch.ones(3), reference=lambda x: x + 1)
"""


def test_times_on_two_gpus_are_stored_under_their_number_and_not_gated(project: Project) -> None:
    project.configure(device="fake*2", case_seconds=0.01)
    project.test_file(HEAD + TIMED)
    recorded = project.guard("--perfguard-update=new")
    recorded.assert_outcomes(passed=2)
    folder = project.path / "baselines"
    own, ranked = ((folder / slug / "test_suite.yaml").read_text() for slug in ("fake-gpu", "fake-gpu-x2"))
    assert "alone/forward" in own
    assert "layer/forward" not in own
    assert "layer/forward" in ranked
    assert "alone" not in ranked
    assert "collectives: [all_reduce dp float32]" in ranked

    (result,) = [each for each in project.read().results if each.ranks == 2]
    times = {each.metric: each for each in result.readings}
    assert times["ranks_time_us"].value == pytest.approx(35.0, rel=0.02)
    assert times["ranks_time_us"].timer == "ranks-queue-cold-m12"
    assert times["ranks_time_us"].note == "rank 1 takes the longest"

    stored = Store(folder).load("fake-gpu-x2", "test_suite")
    assert stored is not None
    entry = stored.cases["layer/forward"].entries["ranks_time_us"]
    assert isinstance(entry, TimedEntry)
    assert entry.sessions == [pytest.approx(35.0, rel=0.02)]  # of this launch

    project.test_file(HEAD + TIMED.replace("us=30.0", "us=110.0"))
    slower = project.guard("-k", "layer")
    slower.assert_outcomes(passed=1)
    verdicts = {each.metric: each for each in project.read().results[0].verdicts}
    assert verdicts["ranks_time_us"].word is Word.PASS
    assert verdicts["ranks_time_us"].ratio == pytest.approx(125 / 35, rel=0.05)


def test_fixtures_of_earlier_tests_end_before_another_file_begins(project: Project) -> None:
    """A test of several ranks may be the last one of its file, behind others whose fixtures are open."""
    open_until_here = """
import pytest

ENDED = []

@pytest.fixture(scope="module")
def kept():
    yield
    ENDED.append(True)
    raise OSError("the disk is full")

def test_has_it(kept):
    pass

@pytest.mark.perfguard(ranks=2)
def test_on_two(perfguard):
    assert perfguard.ranks == 2
"""
    project.configure(device="cpu")
    project.test_file(open_until_here, "test_first.py")
    project.test_file("import test_first\n\ndef test_next():\n    assert test_first.ENDED\n", "test_second.py")
    result = project.run("test_first.py", "test_second.py")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_on_two*", "E*OSError: the disk is full"])
