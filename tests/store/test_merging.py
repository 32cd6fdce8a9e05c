"""Two branches that touch different cases merge with plain git; where they cannot, the conflict reads well."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Parts, Provenance, TimedEntry
from perfguard.model.records.change import Change
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_update import apply

FOLDER, SUITE = "nvidia-h200", "fp8"
TARGET = "targets/sm_90"
MERGED = "merged"


class Repository:
    """A git repository with a baseline of the cases b, d, f, h, each with the same metrics."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root / "baselines")
        self.git("init", "--initial-branch=main")
        self.record("base", *"bdfh")

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

    def compile(self, commit: str, **cases: Parts) -> None:
        """Write the registers of each case's kernels, for a target, and commit."""
        baseline = self.store.load(TARGET, SUITE)
        changes = [
            Change(
                category="changed", folder=TARGET, suite=SUITE, key=f"{name}/forward", metric="sm_90.registers",
                after=registers, before=before(baseline, f"{name}/forward", "sm_90.registers"),
            )
            for name, registers in cases.items()
        ]  # fmt: skip
        apply(self.store, changes, Provenance(triton="3.9.0", commit=commit, recorded="2026-11-25"))
        self.git("add", ".")
        assert self.git("commit", "-m", commit).returncode == 0

    def compiled(self) -> dict[str, Entry]:
        baseline = self.store.load(TARGET, SUITE)
        assert baseline is not None
        return {key.removesuffix("/forward"): case.entries["sm_90.registers"] for key, case in baseline.cases.items()}

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

    assert repository.merge(lambda: record("ours", ours), lambda: record("theirs", theirs)) == MERGED
    assert names(repository) == left
    for commit, (sign, name) in (("ours", ours), ("theirs", theirs)):
        if sign == "+":
            case = repository.cases()[f"{name}/forward"]
            assert case.provenance == Provenance(torch="2.11.0", commit=commit, recorded="2026-11-20")
            assert case.entries["device_time_us"] == TimedEntry(sessions=[50] * 5, timer="graph")


def test_adding_at_the_same_place_is_one_conflict_of_whole_blocks(repository: Repository) -> None:
    text = repository.merge(
        lambda: repository.record("ours", "e"), lambda: repository.record("theirs", "ea", microseconds=70)
    )
    assert text.count("<<<<<<<") == 1
    block = text[text.index("<<<<<<<") : text.index(">>>>>>>")]
    assert (
        block
        == """\
<<<<<<< HEAD
  e/forward:
    device_time_us: {sessions: [60.0, 60.0, 60.0, 60.0, 60.0], timer: graph}
    launches: 1
    inputs: bfloat16[64,48]
    provenance: {torch: 2.11.0, commit: ours, recorded: 2026-11-20}
=======
  ea/forward:
    device_time_us: {sessions: [70.0, 70.0, 70.0, 70.0, 70.0], timer: graph}
    launches: 1
    inputs: bfloat16[64,48]
    provenance: {torch: 2.11.0, commit: theirs, recorded: 2026-11-20}
"""
    )
    with pytest.raises(BaselineError, match=r"line \d+: found a conflict marker of git"):
        repository.cases()
    # Keeping both sides is deleting the markers.
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(("<<<", "===", ">>>"))]
    repository.path.write_text("".join(lines))
    assert names(repository) == "bdeeafh"


def test_the_head_stays_until_every_case_is_recorded_anew(repository: Repository) -> None:
    head = repository.path.read_text().split("cases:")[0]
    repository.record("later", *"bdf", microseconds=50)
    assert repository.path.read_text().split("cases:")[0] == head
    repository.record("last", *"bdfh", microseconds=40)
    assert "commit: last" in repository.path.read_text().split("cases:")[0]
    assert all(case.provenance is None for case in repository.cases().values())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"b": {"rows": 9, "sums": 1}}, {"h": {"sums": 3}}), ({"b": {"rows": 9}}, {"f": {"rows": 9}})],
    ids=["rows of their own", "the same row"],
)
def test_cases_with_kernels_merge(repository: Repository, ours: dict[str, Parts], theirs: dict[str, Parts]) -> None:
    first: dict[str, Parts] = {"b": {"rows": 8, "sums": 1}, "d": {"rows": 8}, "f": {"sums": 1}, "h": {"sums": 2}}
    repository.compile("base", **first)
    merged = repository.merge(
        lambda: repository.compile("ours", **ours), lambda: repository.compile("theirs", **theirs)
    )
    assert merged == MERGED
    assert repository.compiled() == first | ours | theirs


def test_rows_at_the_same_place_conflict_and_both_are_kept_by_deleting_the_markers(repository: Repository) -> None:
    repository.compile("base", b={"rows": 8}, d={"rows": 8}, f={"rows": 8})
    text = repository.merge(
        lambda: repository.compile("ours", b={"rows": 9}), lambda: repository.compile("theirs", f={"rows": 10})
    )
    assert text.count("<<<<<<<") == 1
    with pytest.raises(BaselineError, match="resolve the merge: keep the rows and cases of both sides"):
        repository.compiled()
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(("<<<", "===", ">>>"))]
    repository.store.path(TARGET, SUITE).write_text("".join(lines))
    assert repository.compiled() == {"b": {"rows": 9}, "d": {"rows": 8}, "f": {"rows": 10}}


def test_a_case_whose_row_went_in_the_other_branch_is_told_and_recorded_again(repository: Repository) -> None:
    repository.compile("base", b={"rows": 8}, d={"rows": 8})
    merged = repository.merge(
        lambda: repository.compile("ours", b={"rows": 9}, d={"rows": 9}),
        lambda: repository.compile("theirs", f={"rows": 8}),
    )
    assert merged == MERGED
    with pytest.raises(
        BaselineError, match=r"line \d+: found no row \w+ .*; .* or remove f/forward and record it again"
    ):
        repository.compiled()
    path = repository.store.path(TARGET, SUITE)
    text = path.read_text()
    path.write_text(text[: text.index("  f/forward:")] + "...\n")
    repository.compile("later", f={"rows": 9})
    assert repository.compiled() == {"b": {"rows": 9}, "d": {"rows": 9}, "f": {"rows": 9}}
