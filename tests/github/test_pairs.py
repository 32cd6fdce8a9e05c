"""Process pairs in the post job: honest ones accuse, missing ones are told, those of another commit do not count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.model.errors import ExitStatus
from perfguard.model.records import BaseTree, Report, dump_report
from tests.github.conftest import PostJob
from tests.github.fake import sha
from tests.github.reports import SLUG, archive, baseline_file, compared, entries, paired

GREEN = compared({"f": 50.0, "g": 50.0})
RED = compared({"f": 55.0, "g": 50.0})


def times(job: PostJob) -> list[dict[str, Any]]:
    """The verdicts on times of the first lane."""
    results = job.report["lanes"][0]["report"]["results"]
    return [each for result in results for each in result["verdicts"] if each.get("metric") == "device_time_us"]


def test_all_of_ten_slower_is_a_failure_and_a_comment(job: PostJob) -> None:
    names = [f"case_{number}" for number in range(10)]
    job.baselines(baseline_file({name: entries() for name in names}))
    job.measured({SLUG: compared(dict.fromkeys(names, 60.0))})
    assert job.post() is ExitStatus.REGRESSED
    assert "10 cases slower" in job.comments[0]
    assert job.statuses["perfguard"][0] == "failure"
    assert {verdict["word"] for verdict in times(job)} == {"SLOWER"}


def test_half_slower_and_half_faster_are_both_told(job: PostJob) -> None:
    ran = {f"slow_{number}": 55.0 for number in range(5)} | {f"fast_{number}": 45.0 for number in range(5)}
    job.baselines(baseline_file({name: entries() for name in ran}))
    job.measured({SLUG: compared(ran)})
    assert job.post() is ExitStatus.REGRESSED
    assert job.statuses["perfguard"][0] == "failure"
    assert "5 cases slower" in job.comments[0]
    assert "5 faster" in job.comments[0]
    assert [verdict["word"] for verdict in times(job)] == ["SLOWER"] * 5 + ["FASTER"] * 5


def unpaired(job: PostJob, given: Report, **settings: Any) -> str:
    """Why both times of `given` are undecided; nothing about it is green, and it is told."""
    job.measured({SLUG: given})
    assert job.post(**settings) is ExitStatus.UNGUARDED
    assert job.statuses["perfguard"][0] == "error"
    assert len(job.comments) == 1
    assert [verdict["word"] for verdict in times(job)] == ["UNRESOLVED"] * 2
    (why,) = {verdict["reason"] for verdict in times(job)}
    assert isinstance(why, str)
    return why


def test_a_report_without_its_process_pairs_is_inconclusive(job: PostJob) -> None:
    assert unpaired(job, replace(RED, pairings=[])) == "UNPAIRED: no process pair measured it"


def test_why_a_lane_paired_nothing_is_data(job: PostJob) -> None:
    said = "<b>shallow</b> @org"
    assert unpaired(job, replace(RED, base=BaseTree(problem=said), pairings=[])) == f"UNPAIRED: {said}"
    for text in (job.comments[0], job.summary, (job.folder / "out" / "report.md").read_text()):
        assert "<b>" not in text
        assert "@org" not in text


@pytest.mark.parametrize("equal", [False, True])
def test_process_pairs_with_another_commit_than_the_merge_base_do_not_count(job: PostJob, equal: bool) -> None:
    earlier = replace(RED, base=BaseTree(sha("earlier"), equal), pairings=[paired({"f": 50.0}, base=sha("earlier"))])
    paired_with = f"UNPAIRED: paired with {sha('earlier')[:12]}, the merge base is {sha('fork-point')[:12]}"
    assert unpaired(job, earlier) == f"{paired_with}; push again or reopen the pull request, for a new run"


def test_a_lane_that_was_compared_with_its_own_commit_judged_no_time(job: PostJob) -> None:
    itself = replace(RED, base=BaseTree(sha("head"), equal=True), pairings=[])
    assert unpaired(job, itself).endswith("; give the lane --perfguard-base (docs/ci.md)")


def test_a_tree_that_equals_the_merge_base_has_no_time_to_judge(job: PostJob) -> None:
    job.measured({SLUG: replace(RED, base=BaseTree(sha("fork-point"), equal=True), pairings=[])})
    assert job.post() is ExitStatus.PASSED
    assert [verdict["word"] for verdict in times(job)] == ["UNCHANGED"] * 2


@pytest.mark.parametrize("fields", [{"change": 1e300}, {"change": 0.0, "pair": 1}, {"work_us": 0}], ids=str)
def test_forged_process_pairs_cost_their_case(job: PostJob, fields: dict[str, float]) -> None:
    data = json.loads(dump_report(RED))
    data["pairings"][0]["cases"][0]["times"][0]["readings"][1] |= fields
    job.measured({SLUG: archive(json.dumps(data).encode())})
    assert job.post() is ExitStatus.TESTS_FAILED
    assert job.statuses["perfguard"][0] == "error"
    assert "process pairs&#58; invalid value" in job.comments[0]
    assert [verdict["word"] for verdict in times(job)] == ["UNRESOLVED", "PASS"]


def test_a_process_pair_that_is_no_number_refuses_the_lane(job: PostJob) -> None:
    data = dump_report(RED).replace(b'"control": 0.0', b'"control": NaN')
    assert b"NaN" in data
    job.measured({SLUG: archive(data)})
    assert job.post() is ExitStatus.NOTHING_MEASURED
    assert "NaN is no JSON" in job.report["lanes"][0]["problem"]


def test_a_push_that_was_compared_with_itself_is_warned_about(job: PostJob) -> None:
    job.measured({SLUG: replace(GREEN, base=BaseTree(sha("head"), equal=True), pairings=[])}, event="push")
    assert job.post() is ExitStatus.PASSED
    assert "its own commit, so that no time could differ: give the lane --perfguard-base" in job.report["warnings"][0]


def test_a_merge_group_is_compared_with_what_it_was_queued_on(job: PostJob) -> None:
    queue = "gh-readonly-queue/release/1/pr-7-"
    job.measured({SLUG: RED}, event="merge_group", head_branch=queue + sha("fork-point"))
    assert job.post() is ExitStatus.REGRESSED
    assert job.report["warnings"] == []
    job.measured({SLUG: RED}, event="merge_group", head_branch=queue + sha("base"))
    assert job.post() is ExitStatus.UNGUARDED
    assert job.statuses["perfguard"][0] == "error"
    assert all(f"the merge base is {sha('base')[:12]}" in verdict["reason"] for verdict in times(job))


def test_only_a_merge_queue_names_its_base(job: PostJob) -> None:
    """Anybody may call a branch so, and push to it."""
    branch = f"gh-readonly-queue/main/pr-7-{sha('base')}"
    for event in ("push", "pull_request"):
        job.github.world.pulls[7]["head"]["ref"] = branch
        job.measured({SLUG: RED}, event=event, head_branch=branch)
        assert job.post() is ExitStatus.REGRESSED
