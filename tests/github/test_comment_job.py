"""The post job on the fake GitHub: what each lane delivered, judged, and told in comment, statuses, summary, files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.github import comment_job
from perfguard.github.api import commit_files
from perfguard.github.lanes.judge_again import judge_again
from perfguard.github.outcome import _state, wants_comment
from perfguard.model.config import Settings, settings_from
from perfguard.model.errors import ExitStatus, GitHubError, UsageError
from perfguard.model.lane_summary import Headline
from perfguard.model.records import Report, dump_report
from tests.github.conftest import BASE, PostJob
from tests.github.fake import TOKEN, FakeGitHub, sha
from tests.github.reports import SLUG, archive, baseline_file, compared, entries, measured, remembered, report

GREEN = compared({"f": 50.0, "g": 50.0})
OTHER = "amd-mi300x"


def red() -> Report:
    return compared({"f": 55.0, "g": 50.0})


def headline(job: PostJob) -> str:
    """The summary's."""
    return next(line for line in job.summary.splitlines() if line.startswith("###"))


def test_a_slower_case_gets_a_comment_a_status_a_summary_and_files(job: PostJob) -> None:
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert len(job.comments) == 1
    assert "1 case slower" in job.comments[0]
    assert f"<code>{sha('fork-point')[:12]}</code>" in job.comments[0]
    assert "5 days old" in job.comments[0]
    assert f"--run {job.number}" in job.comments[0]
    assert job.statuses["perfguard"][0] == "failure"
    assert job.statuses[f"perfguard/{SLUG}"][0] == "failure"
    assert "1 case slower" in headline(job)
    for name in ("report.md", "report.html"):
        assert "1 case slower" in (job.folder / "out" / name).read_text()
    assert job.report["head"] == sha("head")


def test_all_green_and_none_of_ours_there_writes_no_comment(job: PostJob) -> None:
    job.measured({SLUG: GREEN})
    assert job.post() is ExitStatus.PASSED
    assert job.comments == []
    assert job.statuses["perfguard"] == ("success", "no change in 2 cases on 1 lane")
    assert "no change" in headline(job)


def test_a_red_comment_is_edited_to_green(job: PostJob) -> None:
    job.measured({SLUG: red()})
    job.post()
    job.measured({SLUG: GREEN})
    assert job.post() is ExitStatus.PASSED
    assert len(job.comments) == 1
    lines = [line for line in job.comments[0].splitlines() if line]
    assert lines[0] == "### ✅ perfguard: no change in 2 cases on 1 lane"
    assert lines[1].startswith(f"Resolved in <code>{sha('head')[:12]}</code> judged by the baselines at")
    assert lines[1].endswith(f"· <code>{SLUG}</code>")
    assert lines[2].startswith("Everything: [summary of the run]")
    assert len(lines) == 3
    assert job.statuses["perfguard"][0] == "success"


def test_row_29_a_lane_without_artifact_is_no_result_and_never_green(job: PostJob) -> None:
    job.measured({SLUG: GREEN, OTHER: None})
    assert job.post(lanes=[SLUG, OTHER]) is ExitStatus.TESTS_FAILED
    assert "1 of 2 lanes without a result" in headline(job)
    assert "no result" in job.comments[0]
    assert job.statuses["perfguard"][0] == "error"
    assert job.statuses[f"perfguard/{OTHER}"][0] == "error"
    assert job.statuses[f"perfguard/{SLUG}"][0] == "success"


def test_row_29_all_lanes_missing_is_an_error(job: PostJob) -> None:
    job.measured({SLUG: None}, conclusion="timed_out")
    assert job.post() is ExitStatus.NOTHING_MEASURED
    assert job.statuses["perfguard"][0] == "error"


def test_row_30_an_expired_artifact_says_run_again(job: PostJob) -> None:
    number = job.measured({})
    job.github.world.add_artifact(number, f"perfguard-{SLUG}-1", archive(GREEN), expired=True)
    assert job.post() is ExitStatus.NOTHING_MEASURED
    assert "expired" in job.report["lanes"][0]["problem"]
    assert "run the lane again" in job.report["lanes"][0]["problem"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no zip", "no readable zip file"),
        (archive(b'{"schema": 7}'), "report schema 7"),
        (archive(b'{"schema": 1, "hardw'), "no JSON"),
        (archive(b"[" * 200_000), "nested too deeply"),
    ],
)
def test_row_31_34_one_lane_is_refused_and_the_others_are_shown(job: PostJob, data: bytes, said: str) -> None:
    job.measured({OTHER: data, SLUG: red()})
    assert job.post(lanes=[OTHER, SLUG]) is ExitStatus.REGRESSED
    assert said in job.report["lanes"][0]["problem"]
    assert "report" in job.report["lanes"][1]
    assert "1 case slower" in headline(job)


def test_row_32_a_value_that_is_none_is_a_row_that_fails(job: PostJob) -> None:
    data = dump_report(GREEN).replace(b'"value": 50.0', b'"value": null', 1)
    job.measured({SLUG: archive(data)})
    assert job.post() is ExitStatus.TESTS_FAILED
    assert "1 case not measured" in headline(job)
    assert "invalid value" in job.comments[0]
    assert "f/forward" in job.comments[0]


def test_the_latest_attempt_counts(job: PostJob) -> None:
    job.measured({SLUG: red()})
    first = job.number
    job.measured({SLUG: GREEN}, attempt=2)
    again = job.github.world.artifacts.values()
    for artifact in again:
        artifact.run = job.number = first
    job.github.world.add_run(first, attempt=2)
    assert job.post() is ExitStatus.PASSED


def test_row_35_strange_names_come_out_literally(job: PostJob) -> None:
    name = "f|`<img src=x>@org/team #1 [x](y) __x__ www.x.y a@b.c\n\u202e" + "z" * 10_000
    job.measured({SLUG: replace(GREEN, results=[*GREEN.results, measured(name)])})
    assert job.post() is ExitStatus.PASSED
    assert "not guarded: 1 case" in headline(job)
    text = job.comments[0]
    for raw in ("<img", "@org", "](y)", "__x__", "www.x", "\u202e", "z" * 201):
        assert raw not in text
    assert "&#124;" in text
    assert "…" in text.replace("&#8230;", "…")


def test_row_36_commands_of_the_runner_in_names_are_harmless(job: PostJob, capfd: pytest.CaptureFixture[str]) -> None:
    job.environ["GITHUB_ACTIONS"] = "true"
    name = "f\n::error::boo\n::stop-commands::x"
    job.measured({SLUG: compared({name: 55.0, "f": 50.0, "g": 50.0})})
    job.post(dry=True)
    out, err = capfd.readouterr()
    open_token = ""
    for line in f"{out}\n{err}".splitlines():
        if line.startswith("::") and not open_token:
            assert line.startswith("::stop-commands::perfguard-"), line
            open_token = line.removeprefix("::stop-commands::")
        elif line == f"::{open_token}::":
            open_token = ""
    assert open_token == ""
    assert "&#58;" in out
    assert "::error" not in out


def test_row_38_limits_and_baselines_of_the_change_are_listed_and_not_obeyed(job: PostJob) -> None:
    why = {"f": {"device_time_us": "trust me"}}
    head = baseline_file({"f": entries(80.0), "g": entries()}, why)
    job.baselines(baseline_file(BASE), head)
    loose = b"[tool.perfguard]\nlanes = []\npair_minutes = 0.0\n"
    job.github.world.files[sha("head")]["pyproject.toml"] = loose
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert [(edit["after"], edit["reason"], edit["loosens"]) for edit in job.report["edits"]] == [
        (80.0, "trust me", True)
    ]
    assert "trust me" in job.comments[0]
    assert "[tool.perfguard] pair_minutes: 10.0 -> 0.0 in this change; not obeyed here" in job.report["warnings"]


def test_an_edit_for_hardware_without_a_lane_is_listed_too(job: PostJob) -> None:
    other = baseline_file(BASE).replace(SLUG.encode(), OTHER.encode())
    path = f"baselines/{OTHER}/area.yaml"
    job.github.world.files[sha("fork-point")][path] = other
    job.github.world.files[sha("head")][path] = other.replace(b"launches: 1", b"launches: 9")
    job.measured({SLUG: GREEN})
    assert job.post() is ExitStatus.PASSED
    assert [(edit["folder"], edit["after"], edit["loosens"]) for edit in job.report["edits"]] == [(OTHER, 9, True)] * 2
    assert "looser" in job.comments[0]


def test_baselines_that_were_not_all_read_judge_nobody(
    job: PostJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.measured({SLUG: GREEN})
    job.post()
    assert job.statuses["perfguard"][0] == "success"
    monkeypatch.setattr(commit_files, "MOST_FILES", 0)
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.NOT_POSTED
    assert "more than 0 files" in capsys.readouterr().err
    gave_up = ("error", "not judged: the post job gave up; run it again")
    assert job.statuses == {"perfguard": gave_up, f"perfguard/{SLUG}": gave_up}


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize(
    ("broken", "raised"),
    [("gather", GitHubError("gone")), ("gather", UsageError("no")), ("_write_files", RuntimeError("a bug"))],
)
def test_whoever_gives_up_says_so_where_green_stood(
    job: PostJob, monkeypatch: pytest.MonkeyPatch, attempt: int, broken: str, raised: Exception
) -> None:
    first = job.measured({SLUG: GREEN})
    job.post()
    assert {state for state, _ in job.statuses.values()} == {"success"}
    job.github.world.add_run(first, attempt=attempt)

    def give_up(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(f"perfguard.github.comment_job.{broken}", give_up)
    if isinstance(raised, GitHubError):
        assert job.post() is ExitStatus.NOT_POSTED
    else:
        with pytest.raises(type(raised)):
            job.post()
    gave_up = ("error", "not judged: the post job gave up; run it again")
    assert job.statuses == {"perfguard": gave_up, f"perfguard/{SLUG}": gave_up}
    job.github.world.statuses.clear()
    with contextlib.suppress(UsageError, RuntimeError):
        job.post(dry=True)
    assert job.statuses == {}


def test_a_change_whose_baselines_were_not_all_read_is_an_error_that_says_so(
    job: PostJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = job.github.world
    world.files[sha("head")] = {
        **world.files[sha("head")], **{f"baselines/{SLUG}/more_{number}.yaml": b"x" for number in range(3)},
    }  # fmt: skip
    monkeypatch.setattr(commit_files, "MOST_FILES", 2)
    job.measured({SLUG: GREEN})
    assert job.post() is ExitStatus.TESTS_FAILED
    said = "incomplete: the change's baselines: more than 2 files: the rest is not read"
    assert job.statuses == dict.fromkeys(["perfguard", f"perfguard/{SLUG}"], ("error", said))
    assert "more than 2 files" in job.github.world.on(7)[0]["body"]


def test_a_regression_is_told_though_baselines_were_not_all_read(job: PostJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.github.world.files[sha("head")] |= {f"baselines/{SLUG}/more.yaml": b"x"}
    monkeypatch.setattr(commit_files, "MOST_FILES", 1)
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert "1 case slower" in job.statuses["perfguard"][1]


def test_an_accepted_finding_is_green_and_told(job: PostJob) -> None:
    why = {"f": {"device_time_us": "more accurate"}}
    job.baselines(baseline_file(BASE), baseline_file({"f": entries(55.0), "g": entries()}, why))
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.PASSED
    assert "accepted: 1 finding" in job.comments[0]
    assert "more accurate" in job.comments[0]
    assert job.statuses["perfguard"][0] == "success"


def test_row_39_a_case_that_is_measured_no_more_is_never_a_silent_pass(job: PostJob) -> None:
    job.measured({SLUG: report([measured("g")])})
    assert job.post() is ExitStatus.TESTS_FAILED
    assert job.statuses["perfguard"][0] == "error"
    assert "1 case not measured" in job.comments[0]


@pytest.mark.parametrize(
    ("date", "behind", "warned"), [("2026-11-16", 3, False), ("2026-09-01", 3, True), ("2026-11-16", 900, True)]
)
def test_row_40_an_old_merge_base_is_warned_about(job: PostJob, date: str, behind: int, warned: bool) -> None:
    job.github.world.add_comparison("base", "head", "fork-point", date=f"{date}T10:00:00Z", behind=behind)
    job.measured({SLUG: red()})
    job.post()
    assert any("the merge base" in warning for warning in job.report.get("warnings", [])) is warned


def test_row_41_another_driver_is_not_comparable_and_says_how_to_record(job: PostJob) -> None:
    job.baselines(baseline_file(BASE).replace(b"driver: 580.1", b"driver: 570.1"))
    job.measured({SLUG: replace(red(), base=None, pairings=[])})
    assert job.post() is ExitStatus.UNGUARDED
    assert job.statuses["perfguard"][1] == (
        "not verified: 2 cases under other conditions than recorded — action needed"
    )
    assert "pytest --perfguard --perfguard-update=changed" in job.comments[0]


@pytest.mark.parametrize("headline", list(Headline))
@pytest.mark.parametrize("strict", [False, True])
def test_no_status_fails_without_a_comment(headline: Headline, strict: bool) -> None:
    overview: Any = SimpleNamespace(headline=headline, edits=[], lanes=[], run_url="")
    failing = _state(headline, strict) != "success"
    assert wants_comment(overview, Settings(strict=strict)) >= failing


def test_row_41_process_pairs_judge_under_another_driver_too(job: PostJob) -> None:
    job.baselines(baseline_file(BASE).replace(b"driver: 580.1", b"driver: 570.1"))
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED


@pytest.mark.parametrize("event", ["push", "merge_group"])
def test_row_44_without_a_pull_request_there_are_status_and_summary(job: PostJob, event: str) -> None:
    job.measured({SLUG: red()}, event=event)
    assert job.post() is ExitStatus.REGRESSED
    assert job.comments == []
    assert job.statuses["perfguard"][0] == "failure"
    assert "1 case slower" in headline(job)
    assert job.report["base"] == sha("head")  # judged by its own baselines
    # Neither the event nor this branch tells the commit before: the report's word stands.
    (said,) = job.report["warnings"]
    assert said.startswith(f"{SLUG}: compared with {sha('fork-point')[:12]} by its own word: GitHub does not tell")


def test_row_45_a_large_summary_ends_with_whole_parts(job: PostJob, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [measured(f"case_{number}") for number in range(300)]
    job.measured({SLUG: report([*cases, measured("f"), measured("g")])})
    monkeypatch.setattr(comment_job, "SUMMARY_BYTES", 20_000)
    job.post()
    assert 0 < len(job.summary.encode()) < 22_000
    assert "Shortened" in job.summary
    assert job.summary.count("<details>") == job.summary.count("</details>")
    whole = (job.folder / "out" / "report.md").read_text()
    assert "Shortened" not in whole
    assert "case&#95;299" in whole


def test_row_48_a_full_disk_still_posts(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    (job.folder / "out").write_text("a file where the folder should be")
    job.environ["GITHUB_STEP_SUMMARY"] = str(job.folder / "none" / "summary.md")
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert len(job.comments) == 1
    said = capsys.readouterr().err
    assert "report.md: not written" in said
    assert "summary was not written" in said


def test_two_pull_requests_of_one_head_get_no_status(job: PostJob) -> None:
    job.github.world.add_pull(8, base_ref="release")
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert job.statuses == {}
    assert job.comments == []  # which one was measured cannot be told
    assert "1 case slower" in headline(job)


def test_a_dry_run_prints_and_writes_nothing(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.measured({SLUG: red()})
    assert job.post(dry=True) is ExitStatus.REGRESSED
    assert job.github.writes == []
    assert job.summary == ""
    out = capsys.readouterr().out
    assert "perfguard: failure: 1 case slower" in out
    assert "comment on #7:" in out
    assert "### ❌" in out


def test_row_13_a_closed_pull_request_gets_a_summary_only(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.github.world.pulls[7]["state"] = "closed"
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert job.github.writes == []
    assert "1 case slower" in headline(job)
    assert "no open pull request" in capsys.readouterr().err


def test_settings_of_an_old_merge_base_that_nobody_reads_any_more(job: PostJob) -> None:
    job.github.world.files[sha("fork-point")]["pyproject.toml"] = b"[tool.perfguard]\nbark = 1\n"
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.REGRESSED
    assert any("the default branch's settings were taken" in warning for warning in job.report["warnings"])


def test_comment_never_leaves_the_statuses(job: PostJob) -> None:
    job.measured({SLUG: red()})
    assert job.post(comment="never") is ExitStatus.REGRESSED
    assert job.comments == []
    assert job.statuses["perfguard"][0] == "failure"


def test_drafts_and_the_author_are_settings(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.github.world.pulls[7]["draft"] = True
    job.measured({SLUG: red()})
    job.post(drafts=False)
    assert "is a draft, which gets no comment here" in capsys.readouterr().err
    assert job.comments == []
    job.post()
    assert len(job.comments) == 1
    job.github.world.on(7)[0]["user"] = {"login": "guard[bot]", "type": "Bot"}
    job.measured({SLUG: GREEN})
    job.post(author="guard[bot]")
    assert "Resolved in" in job.comments[0]
    with pytest.raises(UsageError, match="author"):
        settings_from(b"[tool.perfguard]\nauthor = 'a b'\n", "pyproject.toml")


def test_faster_gets_a_comment_only_if_wanted(job: PostJob) -> None:
    job.measured({SLUG: compared({"f": 45.0, "g": 50.0})})
    assert job.post() is ExitStatus.PASSED
    assert job.comments == []
    job.post(comment="improvements")
    assert "1 case faster" in job.comments[0]


def test_posting_trouble_changes_no_verdict_and_loses_no_report(
    job: PostJob, capsys: pytest.CaptureFixture[str]
) -> None:
    for measured_, status in ((red(), ExitStatus.REGRESSED), (GREEN, ExitStatus.NOT_POSTED)):
        job.measured({SLUG: measured_})
        job.github.fail(method="POST", status=403, body={"message": "Resource not accessible by integration"})
        job.github.fail(method="POST", status=403, body={"message": "Resource not accessible by integration"})
        assert job.post() is status
        assert (job.folder / "out" / "report.md").exists()
        assert TOKEN not in capsys.readouterr().err


def judged(given: Report) -> Report:
    """As its own run judged it."""
    return judge_again(given, remembered(BASE).lane(given.hardware, given.toolchain))


@pytest.mark.parametrize(
    ("given", "lanes", "status"),
    [
        (GREEN, [SLUG], ExitStatus.PASSED),
        (red(), [SLUG], ExitStatus.REGRESSED),
        (red(), [], ExitStatus.REGRESSED),
        (replace(GREEN, pairings=[]), [SLUG], ExitStatus.UNGUARDED),
        (GREEN, [SLUG, OTHER], ExitStatus.TESTS_FAILED),
    ],
    ids=["green", "red", "no lanes", "inconclusive", "a lane is missing"],
)
def test_row_1_without_a_token_the_reports_at_hand_are_told_in_one_line(
    job: PostJob, capsys: pytest.CaptureFixture[str], given: Report, lanes: list[str], status: ExitStatus
) -> None:
    job.environ["GITHUB_TOKEN"] = ""
    job.measured({SLUG: given})
    (job.folder / "out").mkdir()
    (job.folder / "out" / f"report-{SLUG}.json").write_bytes(dump_report(judged(given)))
    assert job.post(lanes=lanes) is status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("perfguard: comment skipped: no token in GITHUB_TOKEN; ")
    assert line.endswith(f"; report: {job.folder / 'out' / 'report.md'}")
    assert headline(job) in (job.folder / "out" / "report.md").read_text()
    assert job.github.requests == []


def test_without_a_token_and_without_reports_nothing_is_judged(
    job: PostJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.environ["GITHUB_TOKEN"] = ""
    job.measured({SLUG: red()})
    assert job.post() is ExitStatus.NOT_POSTED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("perfguard: comment skipped: no token in GITHUB_TOKEN; ")
    assert line.endswith(f"; no report-*.json in {job.folder / 'out'} either")


def test_a_run_of_another_workflow_is_left_alone(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    other = ".github/workflows/other.yml"
    job.measured({SLUG: red()}, path=other)
    assert job.post() is ExitStatus.PASSED
    assert job.github.writes == []
    assert "of another workflow" in capsys.readouterr().err
    assert job.post(workflow=other) is ExitStatus.REGRESSED


def test_no_expected_lane_is_a_mistake(job: PostJob) -> None:
    job.measured({SLUG: red()})
    with pytest.raises(UsageError, match=r"name those of measure\.yml"):
        job.post(lanes=[])


def test_the_baselines_of_the_head_cost_little(job: PostJob, github: FakeGitHub, tmp_path: Path) -> None:
    job.measured({SLUG: GREEN})
    job.post()
    assert len([path for _, path in github.requests if "/blobs/" in path]) == 2  # settings and baselines, once
