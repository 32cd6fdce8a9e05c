"""`compare_to = "base-tip"`: the base branch's last baselines judge; what the change edits it edited since it left."""

from __future__ import annotations

import pytest

from perfguard.model.errors import ExitStatus
from tests.github.api.fake.world import sha
from tests.github.lanes.reports import PATH, SLUG, baseline_file, entries, measured, report
from tests.github.post.conftest import CONFIGURATION, PostJob

TIP = {"compare_to": "base-tip"}
WHY = {"f": {"launches": "needed"}}


def launches(count: int, *more: str) -> bytes:
    return baseline_file({"f": entries(0, count)} | {name: entries(0) for name in more})


@pytest.fixture
def moved(job: PostJob) -> PostJob:
    """The base branch has moved on since the change left it: a second launch of `f` was accepted there."""
    job.baselines(launches(1))
    world = job.github.world
    world.files[sha("base")] = {"pyproject.toml": CONFIGURATION, PATH: launches(2)}
    world.comparisons["main", sha("head")] = world.comparisons[sha("base"), sha("head")]
    return job


def test_the_tip_judges_and_is_named(moved: PostJob) -> None:
    moved.measured({SLUG: report([measured("f", 0, 2)])})
    assert moved.post(**TIP) is ExitStatus.PASSED
    assert moved.comments == []
    assert moved.report["edits"] == []
    assert f"<code>{sha('base')[:12]}</code>, the tip of its base branch ·" in moved.summary
    assert moved.post() is ExitStatus.REGRESSED
    assert f"<code>{sha('fork-point')[:12]}</code>, the merge base, 5 days old" in moved.comments[0]


def test_an_old_merge_base_lets_nothing_pass(moved: PostJob) -> None:
    moved.baselines(launches(9))
    moved.measured({SLUG: report([measured("f", 0, 9)])})
    assert moved.post() is ExitStatus.PASSED
    assert moved.post(**TIP) is ExitStatus.REGRESSED
    assert moved.report["edits"] == []


def test_it_is_not_warned_about_where_the_tip_judges(moved: PostJob) -> None:
    moved.measured({SLUG: report([measured("f", 0, 2)])})
    moved.post(max_base_age_days=1)
    assert any("merge base" in warning for warning in moved.report["warnings"])
    moved.post(max_base_age_days=1, **TIP)
    assert moved.report["warnings"] == []


def test_what_the_change_edits_is_covered_and_what_others_edited_is_not_its_own(moved: PostJob) -> None:
    moved.baselines(launches(1), baseline_file({"f": entries(0, 3)}, WHY))
    moved.measured({SLUG: report([measured("f", 0, 3)])})
    assert moved.post(**TIP) is ExitStatus.PASSED
    assert [(edit["before"], edit["after"], edit["reason"]) for edit in moved.report["edits"]] == [(1, 3, "needed")]
    assert "accepted: 1 finding" in moved.comments[0]


def test_a_case_that_only_the_tip_knows_is_missed_and_no_edit_covers_that(moved: PostJob) -> None:
    moved.github.world.files[sha("base")][PATH] = launches(2, "added")
    moved.measured({SLUG: report([measured("f", 0, 2)])})
    assert moved.post(**TIP) is ExitStatus.TESTS_FAILED
    assert moved.report["lanes"][0]["unmeasured"] == ["added/forward"]
    assert moved.report["edits"] == []
    # … while one that the change removed, together with its baseline, is covered as ever.
    moved.baselines(launches(1, "gone"), launches(1))
    moved.github.world.files[sha("base")][PATH] = launches(2, "gone")
    assert moved.post(**TIP) is ExitStatus.PASSED
    assert moved.report["lanes"][0]["accepted"] == [["area", "gone/forward", ""]]


def test_settings_of_the_tip_hold_and_only_the_changes_own_are_listed(moved: PostJob) -> None:
    files = moved.github.world.files
    files[sha("base")]["pyproject.toml"] = CONFIGURATION + b"sessions = 6\n"
    moved.measured({SLUG: report([measured("f", 0, 2)])})
    moved.post(**TIP)
    assert moved.report["warnings"] == []
    files[sha("head")]["pyproject.toml"] = CONFIGURATION + b"sessions = 1\n"
    moved.post(**TIP)
    assert moved.report["warnings"] == ["[tool.perfguard] sessions: 5 -> 1 in this change; not obeyed here"]


def test_a_branch_with_any_name_can_be_the_base(moved: PostJob) -> None:
    world = moved.github.world
    world.pulls[7]["base"]["ref"] = "release/1#2"
    world.comparisons["release/1#2", sha("head")] = world.comparisons["main", sha("head")]
    moved.measured({SLUG: report([measured("f", 0, 2)])})
    assert moved.post(**TIP) is ExitStatus.PASSED


def test_a_push_is_judged_by_its_own_commit_either_way(moved: PostJob) -> None:
    moved.measured({SLUG: report([measured("f", 0, 1)])}, event="push")
    assert moved.post(**TIP) is ExitStatus.PASSED
    assert moved.report["base"] == sha("head")
