"""What a base is asked, and what is paired first where there may be too little time for all."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from perfguard.judge.pair_test import PairVerdict
from perfguard.judge.questions import Question
from perfguard.model.config import Config, Settings
from perfguard.model.records import Case, CaseResult, ReadingId, Verdict, Word
from perfguard.session.child import ChildCommand, Request
from perfguard.session.open_run import open_run
from perfguard.session.pairing.asking import FIRST, GROWTH, PATIENCE, Asking, answers, in_next_pair, in_order
from perfguard.session.pairing.pairs import Answer
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worker import Followed
from perfguard.session.pairing.worktrees import Repository
from perfguard.testing.fake import FakeDevice

METRIC = "device_time_us"


def test_a_full_disk_is_a_problem_that_the_verdicts_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(Repository, "add_worktree", full)
    run = open_run(Config(root=tmp_path, settings=Settings()), FakeDevice(seed=1), ["suite"])
    command = ChildCommand((), tmp_path)
    Asking(run, command, lambda _: None, "0" * 40, Question(), 0, 0.0, lambda _: None).ask()
    assert [(each.base, each.problem) for each in run.pairings] == [("0" * 40, "[Errno 28] No space left on device")]
    assert not list(Path(tempfile.gettempdir()).glob(f"perfguard-pairs-{os.getpid()}-*"))


class Dying:
    """The worktrees of a base whose process dies in these tests, and answers all before them."""

    def __init__(self, *deadly: str, problem: str = "", died: bool = True) -> None:
        self.deadly, self.problem, self.died = deadly, problem or "the base ended with status 7", died
        self.asked: list[list[str]] = []

    def answer(self, request: Request) -> Answer:
        assert request.tests is not None
        self.asked.append(request.tests)
        at = next((place for place, test in enumerate(request.tests) if test in self.deadly), None)
        cases = [Case("suite", test, "forward", test) for test in request.tests[:at] if test != "absent"]
        results = [CaseResult(case) for case in cases]
        return Answer(results, Followed(), *(() if at is None else (self.problem, self.died)))


@pytest.mark.parametrize(
    ("worktrees", "answered", "blamed", "processes"),
    [
        (Dying(), "abcd", "", 1),
        (Dying("b"), "acd", "b", 3),  # the one that the base lacks is blamed first
        (Dying("a", "d"), "bc", "ad", 2),
        (Dying("a", "b", "c"), "", "abcd", 3),  # it dies wherever: no test is to blame
        (Dying("b", problem="the base took longer than 10 minutes", died=False), "a", "bcd", 1),
    ],
    ids=["none", "one", "two", "all", "hang"],
)
def test_a_test_that_kills_the_base_s_process_spares_those_behind_it(
    worktrees: Dying, answered: str, blamed: str, processes: int
) -> None:
    tests = ["a", "absent", "b", "c", "d"]
    found, _, problems = answers(worktrees, Request(), tests)  # type: ignore[arg-type]
    assert [name for _, name in sorted(found)] == [f"{name}/forward" for name in answered]
    assert problems.keys() - {"absent"} == set(blamed)
    assert len(worktrees.asked) == processes


def asked(*names: str, ratio: float | None = None, metric: str = METRIC) -> dict[ReadingId, Verdict]:
    cases = [Case("suite", name, "forward") for name in names]
    return {ReadingId("suite", case.key, metric): Verdict(Word.SUSPECT, metric, ratio=ratio) for case in cases}


def names(tracks: list[ReadingId]) -> list[str]:
    return [track.key.partition("/")[0] for track in tracks]


def test_what_moved_most_comes_first() -> None:
    moved = asked("a[1]", ratio=1.02) | asked("b[1]", ratio=0.9) | asked("c[1]") | asked("d[1]", ratio=1.05)
    assert names(in_order(moved)) == ["b[1]", "d[1]", "a[1]", "c[1]"]


def test_host_times_come_last() -> None:
    """However far they moved: on a busy machine each would take six pairs, and the time is over."""
    calls = [f"a[{number}]" for number in range(20)]
    wanted = asked(*calls, ratio=2.0, metric="host_time_us") | asked(*calls, ratio=1.01)
    assert [track.metric for track in in_order(wanted)] == [METRIC] * 20 + ["host_time_us"] * 20


def test_every_kernel_has_its_turn_in_the_first_pair() -> None:
    wanted = asked(*(f"a[{us}]" for us in range(900)), ratio=1.5) | asked("a[900]", ratio=1.6)
    wanted |= asked(*(f"b[{us}]" for us in range(100)), ratio=1.01) | asked("c[7]")
    order = in_order(wanted)
    assert sorted(order) == sorted(wanted)
    tally = tally_of(order)
    assert names(in_next_pair(order, tally))[:3] == ["a[900]", "b[0]", "c[7]"]
    assert Counter(name[0] for name in names(in_next_pair(order, tally))) == {"a": 12, "b": 11, "c": 1}
    for pairs, places in ((0, 24), (PATIENCE - 1, 24), (PATIENCE, 96), (2 * PATIENCE, 384), (3 * PATIENCE, 1002)):
        tally.pairs = pairs
        assert len(in_next_pair(order, tally)) == places


def tally_of(tracks: Iterable[ReadingId]) -> Tally:
    return Tally(
        {track: CaseResult(Case("suite", track.key.partition("/")[0], "forward")) for track in tracks}, family=1
    )


def found(pairs: int, effect: float = 0.0, word: Word | None = None) -> PairVerdict:
    return PairVerdict(word, effect, (effect - 0.1, effect + 0.1), pairs, None)


def test_no_time_waits_for_the_noise_of_another() -> None:
    order = in_order(asked(*(f"a[{number}]" for number in range(FIRST + 5))))
    noisy, unread = order[:FIRST], order[FIRST:]
    tally = tally_of(order)
    tally.verdicts = {track: found(PATIENCE - 1) for track in noisy}
    assert in_next_pair(order, tally) == noisy  # not all at once: a time keeps its place for its first pairs
    tally.verdicts = {track: found(PATIENCE, effect=0.001 * at) for at, track in enumerate(noisy)}
    assert in_next_pair(order, tally) == [*unread, *noisy[:4:-1]]  # of the noisy ones those that moved most
    assert len(order) < FIRST * GROWTH
    tally.pairs = PATIENCE
    assert len(in_next_pair(order, tally)) == len(order)


def test_each_kernel_of_observed_tests_is_paired_in_one_test_first() -> None:
    """The one in which it took longest, after the guarded calls: a block of it is a run of a whole test."""

    def kernel(name: str, *times: float) -> dict[ReadingId, Verdict]:
        metric = f"kernel_time_us[{name}]"
        return {
            ReadingId("suite", Case("suite", f"{name}{us:g}", "test").key, metric): Verdict(
                Word.SUSPECT, metric, before=us
            )
            for us in times
        }

    order = in_order(kernel("a", 3, 9, 5) | kernel("b", *range(1, 12)) | asked("call", ratio=1.1))
    tally = tally_of(order)
    assert names(in_next_pair(order, tally)) == ["call", "b11", "a9"]
    decided = next(track for track in order if track.key.startswith("b11"))
    tally.verdicts[decided] = found(2, word=Word.PASS)
    left = [track for track in order if track != decided]
    assert names(in_next_pair(left, tally)) == ["call", "a9", "b10", "b9", "b8", "b7", "b6"]


def test_a_kernel_that_is_known_from_several_tests_is_not_paired_in_the_others() -> None:
    """Of the same kernel; what is the same in five tests may still be slower in a sixth."""
    kernels = [ReadingId("suite", f"{name}{n}/test", f"kernel_time_us[{name}]") for name in "ab" for n in range(8)]
    tally = tally_of(kernels)
    for track in kernels:
        if int(track.key[1]) < 5:
            tally.verdicts[track] = found(3, 0.1, Word.PASS if track.key.startswith("b") else Word.SLOWER)
    left = [track for track in kernels if track not in tally.verdicts]
    assert in_next_pair(left, tally) == [track for track in left if track.key.startswith("b")]
    kernels = left
    assert {tally.times[track].why for track in kernels if track.key.startswith("a")} == {
        "known from 5 other tests of this kernel"
    }
