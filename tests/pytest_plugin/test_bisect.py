"""The search for the first bad commit, with steps that are given."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from benchmarks.checkouts import git
from perfguard.cli import main
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.pytest_plugin.bisect import Step, first_bad
from perfguard.session.pairing.worktrees import Repository

NUMBER = 20
SLOWER = frozenset({(("suite", "norm/forward"), "device_time_us")})
OTHER = frozenset({(("suite", "norm/forward"), "launches")})


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, list[str]]:
    """A repository of commits, oldest first."""
    folder = tmp_path_factory.mktemp("history")
    git(folder, "init", "-q", "-b", "main")
    commits = []
    for number in range(NUMBER + 1):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return Repository(folder), commits


class Judge:
    """Answers by the number of a commit, and counts how often it is asked."""

    def __init__(
        self, commits: list[str], first: int, unclear: Collection[int] = (), other: Collection[int] = ()
    ) -> None:
        self.commits, self.first, self.unclear, self.other = commits, first, unclear, other
        self.asked: list[int] = []

    def __call__(self, commit: str) -> Step:
        number = self.commits.index(commit)
        self.asked.append(number)
        if number in self.unclear:
            return Step("skipped", "UNRESOLVED")
        if number in self.other:
            return Step("bad", "CHANGED", OTHER)
        return Step("bad", "SLOWER", SLOWER) if number >= self.first else Step("good", "passes")


@pytest.mark.parametrize("first", range(1, NUMBER + 1))
def test_each_culprit_is_found_in_few_steps(history: tuple[Repository, list[str]], first: int) -> None:
    repository, commits = history
    judge = Judge(commits, first)
    assert first_bad(repository, commits[0], commits[-1], judge) == [commits[first]]
    assert len(judge.asked) <= 6  # the last commit, and log2(20)
    assert len(set(judge.asked)) == len(judge.asked)


def test_commits_that_cannot_be_told_are_named_only_before_the_first_bad_one(
    history: tuple[Repository, list[str]],
) -> None:
    repository, commits = history
    apart = Judge(commits, 13, unclear=(3, 5))
    assert first_bad(repository, commits[0], commits[-1], apart) == [commits[13]]
    beside = Judge(commits, 13, unclear=(11, 12, 5))
    found, *unclear = first_bad(repository, commits[0], commits[-1], beside)
    assert found == commits[13]
    assert set(unclear) == {commits[11], commits[12]}


def test_another_change_that_has_gone_again_is_not_it(history: tuple[Repository, list[str]]) -> None:
    repository, commits = history
    judge = Judge(commits, 17, other=range(8, 12))
    assert first_bad(repository, commits[0], commits[-1], judge) == [commits[17]]
    assert any(8 <= number < 12 for number in judge.asked)


def test_nothing_is_searched_if_the_last_commit_is_good_or_cannot_be_compared(
    history: tuple[Repository, list[str]],
) -> None:
    repository, commits = history
    judge = Judge(commits, NUMBER + 1)
    assert first_bad(repository, commits[0], commits[-1], judge) == []
    assert judge.asked == [NUMBER]
    with pytest.raises(UsageError, match=r"cannot be compared with .*UNRESOLVED"):
        first_bad(repository, commits[0], commits[-1], Judge(commits, 3, unclear=(NUMBER,)))


def test_usage(
    history: tuple[Repository, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, commits = history
    monkeypatch.chdir(repository.root)
    for arguments, said in (
        ([], "name a commit that is known to be good"),
        (["nowhere"], "nowhere: no commit of"),
        ([commits[5], commits[3]], "is no ancestor of"),
        (["--over", "triton"], "name a package and its releases"),
    ):
        assert main(["bisect", *arguments]) == ExitStatus.USAGE_ERROR
        assert said in capsys.readouterr().err
