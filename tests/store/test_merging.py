"""Two branches that touch different cases merge with plain git; where they cannot, the conflict reads well."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.change import Change
from perfguard.store.baseline_files import Store, apply

FOLDER, SUITE = "nvidia-h200", "fp8"
MERGED = "merged"


class Repository:
    """A git repository with a baseline of the cases b, d, f, h, each with the same metrics."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root / "baselines")
        self.git("init", "--initial-branch=main")
        self.record("5 base", *"bdfh")

    @property
    def path(self) -> Path:
        return self.store.path(FOLDER, SUITE)

    def git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        plain = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        line = ["git", *identity, *arguments]
        return subprocess.run(line, cwd=self.root, env=plain, capture_output=True, text=True)

    def record(self, commit: str, *names: str, microseconds: float = 60.0, remove: str = "") -> None:
        """Write the cases of these names anew, remove others, and commit."""
        baseline = self.store.load(FOLDER, SUITE)
        changes = []
        for name in names:
            key = f"{name}/forward"
            entries: dict[str, Entry] = {
                "device_time_us": TimedEntry(sessions=[microseconds] * 5, timer="graph"),
                "launches": 1,
            }
            changes += [
                Change(
                    category="changed", folder=FOLDER, suite=SUITE, key=key, metric=metric, after=entry,
                    before=before(baseline, key, metric), inputs="bfloat16[64,48]",
                )
                for metric, entry in entries.items()
            ]  # fmt: skip
        changes += [Change(category="stale", folder=FOLDER, suite=SUITE, key=f"{name}/forward") for name in remove]
        apply(self.store, changes, Provenance(torch="2.11.0", commit=commit, recorded="2026-11-20"))
        self.git("add", ".")
        assert self.git("commit", "-m", commit).returncode == 0

    def merge(self, ours: Callable[[], None], theirs: Callable[[], None]) -> str:
        """`MERGED`, or the file with its conflict."""
        self.git("checkout", "-b", "theirs")
        theirs()
        self.git("checkout", "-b", "ours", "main")
        ours()
        if self.git("merge", "theirs").returncode == 0:
            return MERGED
        files = self.git("diff", "--name-only", "--diff-filter=U").stdout.split()
        return "".join((self.root / file).read_text() for file in files)

    def cases(self) -> dict[str, CaseBaseline]:
        baseline = self.store.load(FOLDER, SUITE)
        assert baseline is not None
        return baseline.cases


def before(baseline: Baseline | None, key: str, metric: str) -> Entry | None:
    return baseline.cases[key].entries.get(metric) if baseline and key in baseline.cases else None


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def names(repository: Repository) -> str:
    return "".join(key.removesuffix("/forward") for key in repository.cases())


@pytest.mark.parametrize(
    ("ours", "theirs", "left"),
    [
        ("+b", "+d", "bdfh"),  # both record neighbours anew
        ("+h", "+f", "bdfh"),
        ("+a", "+c", "abcdfh"),  # both add, before and after a case
        ("+i", "+g", "bdfghi"),
        ("+c", "+b", "bcdfh"),  # one adds beside a case that the other records anew
        ("+c", "+d", "bcdfh"),
        ("+i", "+h", "bdfhi"),
        ("-d", "+b", "bfh"),  # one removes a case beside one that the other records anew
        ("-d", "+f", "bfh"),
    ],
)
def test_branches_that_touch_different_cases_merge(repository: Repository, ours: str, theirs: str, left: str) -> None:
    def record(commit: str, change: str) -> None:
        added, removed = (change[1:], "") if change[0] == "+" else ("", change[1:])
        repository.record(commit, *added, microseconds=50, remove=removed)

    assert repository.merge(lambda: record("7 ours", ours), lambda: record("3 theirs", theirs)) == MERGED
    assert names(repository) == left
    for commit, (sign, name) in (("7 ours", ours), ("3 theirs", theirs)):
        if sign == "+":
            case = repository.cases()[f"{name}/forward"]
            assert case.recording == commit
            assert case.entries["device_time_us"] == TimedEntry(sessions=[50] * 5, timer="graph")


def kept(text: str) -> str:
    """What is left when the markers of a conflict are deleted."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("<<<", "===", ">>>")))


def test_recordings_of_neighbouring_commits_conflict_in_their_lines_alone(repository: Repository) -> None:
    text = repository.merge(lambda: repository.record("7 ours", "b"), lambda: repository.record("8 theirs", "h"))
    assert text.count("<<<<<<<") == 1
    assert text.index(">>>>>>>") < text.index("cases:")
    with pytest.raises(
        BaselineError, match=r"line \d+: a conflict marker of git; resolve the merge: keep the recordings"
    ):
        repository.cases()
    repository.path.write_text(kept(text))
    assert [case.recording for case in repository.cases().values()] == ["7 ours", "5 base", "5 base", "8 theirs"]


def test_adding_at_the_same_place_is_one_conflict_of_whole_blocks(repository: Repository) -> None:
    text = repository.merge(
        lambda: repository.record("7 ours", "e"), lambda: repository.record("3 theirs", "ea", microseconds=70)
    )
    assert text.count("<<<<<<<") == 1
    block = text[text.index("<<<<<<<") : text.index(">>>>>>>")]
    assert (
        block
        == """\
<<<<<<< HEAD
  e/forward:
    device_time_us: {timer: graph, sessions: [60.0, 60.0, 60.0, 60.0, 60.0]}
    facts: {launches: 1}
    inputs: bfloat16[64,48]
    recording: 7 ours
=======
  ea/forward:
    device_time_us: {timer: graph, sessions: [70.0, 70.0, 70.0, 70.0, 70.0]}
    facts: {launches: 1}
    inputs: bfloat16[64,48]
    recording: 3 theirs
"""
    )
    with pytest.raises(BaselineError, match=r"line \d+: a conflict marker of git"):
        repository.cases()
    # Keeping both sides is deleting the markers.
    repository.path.write_text(kept(text))
    assert names(repository) == "bdeeafh"


def test_a_case_whose_recording_went_in_the_other_branch_is_told(repository: Repository) -> None:
    """One branch records everything anew, the other adds a case of the old recording."""
    text = repository.merge(
        lambda: repository.record("7 ours", *"bdfh"), lambda: repository.record("5 base", "z", microseconds=50)
    )
    assert text == MERGED
    with pytest.raises(BaselineError, match=r"cases\.z/forward: no 5 base in recordings; take its line from the other"):
        repository.cases()
