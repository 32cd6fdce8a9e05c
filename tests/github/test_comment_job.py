"""The post job on the fake GitHub: what the lanes delivered, judged and reported in comment, statuses and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.github import comment_job
from perfguard.github.api import commit_files
from perfguard.github.outcome import _state, wants_comment
from perfguard.model.errors import ExitStatus, GitHubError, UsageError
from perfguard.model.records import BaseTree, Report, dump_report
from perfguard.render.overview import Headline
from perfguard.store import comment_limits
from tests.github.conftest import BASE, FakeClock, PostJob
from tests.github.fake import TOKEN, repository, sha
from tests.github.reports import (
    SLUG,
    archive,
    baseline_file,
    compared,
    entries,
    measured,
    paired,
    report,
)

GREEN = compared({"f": 50.0, "g": 50.0})
RED = compared({"f": 55.0, "g": 50.0})
OTHER = "amd-mi300x"
WHY = {"f": "more accurate"}


def headline(job: PostJob) -> str:
    """The summary's."""
    return next(line for line in job.summary.splitlines() if line.startswith("###"))


def times(job: PostJob) -> list[dict[str, Any]]:
    """The verdicts on times of the first lane."""
    results = job.report["lanes"][0]["report"]["results"]
    return [each for result in results for each in result["verdicts"] if each.get("metric") == "device_time_us"]


# -- one report, one outcome -------------------------------------------------------------------------------------------


def test_a_slower_case_gets_a_comment_a_status_a_summary_and_files(job: PostJob) -> None:
    job.measured({SLUG: RED})
    assert job.posted() == "failure"
    assert len(job.comments) == 1
    for said in ("1 case slower", f"<code>{sha('fork-point')[:12]}</code>", f"--run {job.number}"):
        assert said in job.comments[0]
    assert job.statuses["perfguard"][0] == job.statuses[f"perfguard/{SLUG}"][0] == "failure"
    assert "1 case slower" in headline(job)
    for name in ("report.md", "report.html"):
        assert "1 case slower" in (job.folder / "out" / name).read_text()
    assert job.report["head"] == sha("head")
    assert len([path for _, path in job.github.requests if "/blobs/" in path]) == 1  # the baselines, once


def test_causes_are_linked_to_the_measured_line_and_to_the_job_of_their_lane(job: PostJob) -> None:
    number = job.measured({SLUG: RED})
    job.github.data.jobs[number, 1] = ["lanes", f"measure ({SLUG}-x2) / lane", f"measure ({SLUG}) / lane"]
    job.post()
    (text,) = job.comments
    assert f"]({job.github.server}/o/r/blob/{sha('head')}/tests/test_area.py)" in text
    assert f"❌ [<code>{SLUG}</code>]({job.github.server}/o/r/actions/runs/{number}/job/3) " in text


@pytest.mark.parametrize("names", [[f"measure ({SLUG})", f"twice ({SLUG})"], [], ["lanes"]])
def test_a_lane_without_a_job_of_its_own_has_no_link(job: PostJob, names: list[str]) -> None:
    number = job.measured({SLUG: RED})
    job.github.data.jobs[number, 1] = names
    if not names:
        job.github.fail(path=r"/actions/runs/\d+/attempts/1/jobs", status=403)
    assert job.posted() == "failure"
    assert f"❌ <code>{SLUG}</code> slower" in job.comments[0]


def test_a_red_comment_is_edited_to_green(job: PostJob) -> None:
    job.measured({SLUG: RED})
    job.post()
    job.measured({SLUG: GREEN})
    assert job.posted() == "success"
    assert len(job.comments) == 1
    lines = [line for line in job.comments[0].splitlines() if line]
    assert lines[0] == "### ✅ perfguard: no change in 2 cases on 1 lane"
    assert lines[1].startswith(f"Resolved in <code>{sha('head')[:12]}</code> judged by the baselines and the code at")
    assert lines[1].endswith(f"· <code>{SLUG}</code>")
    assert lines[2].startswith("Everything: [summary of the run]")
    assert len(lines) == 3
    assert job.statuses["perfguard"] == ("success", "no change in 2 cases on 1 lane")


OLD_DRIVER = baseline_file(BASE).replace(b"driver: '580.1'", b"driver: '570.1'")
Lanes = Mapping[str, Report | bytes | None]
#: Delivery, settings and baselines; total status, part of the summary's headline, part of the comment.
OUTCOMES: dict[str, tuple[Lanes, dict[str, Any], bytes, str, str, str]] = {
    "green": ({SLUG: GREEN}, {}, b"", "success", "no change in 2 cases", ""),
    "a lane without artifact": (
        {SLUG: GREEN, OTHER: None}, {"lanes": [SLUG, OTHER]}, b"",
        "error", "1 of 2 lanes without a result", "no result",
    ),
    "no lane has an artifact": ({SLUG: None}, {}, b"", "error", "1 of 1 lane without", "nothing was uploaded"),
    "no zip": (
        {OTHER: b"no zip", SLUG: RED}, {"lanes": [OTHER, SLUG]}, b"",
        "failure", "1 case slower", "no readable zip file",
    ),
    "no report": ({SLUG: archive(b'{"schema": 7}')}, {}, b"", "error", "1 of 1 lane", "report schema 7"),
    "a value that is none": (
        {SLUG: archive(dump_report(GREEN).replace(b'"value": 50.0', b'"value": null', 1))}, {}, b"",
        "error", "1 case not measured", "invalid value",
    ),
    "a recorded case is gone": (
        {SLUG: report([measured("g")])}, {}, b"", "error", "1 case not measured", "f/forward",
    ),
    "another driver, without pairs": (
        {SLUG: replace(RED, base=None, pairings=[])}, {}, OLD_DRIVER,
        "error", "not verified: 2 cases under other conditions", "--perfguard-update=changed",
    ),
    "another driver, with pairs": ({SLUG: RED}, {}, OLD_DRIVER, "failure", "1 case slower", "1 case slower"),
    "faster": ({SLUG: compared({"f": 45.0, "g": 50.0})}, {}, b"", "success", "1 case faster", ""),
    "no comment wanted": ({SLUG: RED}, {"comment": "never"}, b"", "failure", "1 case slower", ""),
    "half slower, half faster": (
        {SLUG: compared({"a": 55.0, "b": 45.0, "c": 55.0, "d": 45.0})}, {},
        baseline_file(dict.fromkeys("abcd", entries())),
        "failure", "2 cases slower", "2 faster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OUTCOMES)
def test_an_outcome(job: PostJob, what: str) -> None:
    """A comment is created only where one is expected."""
    lanes, settings, base, state, title, said = OUTCOMES[what]
    if base:
        job.baselines(base)
    job.measured(lanes)
    assert job.posted(**settings) == state
    assert title in headline(job)
    assert len(job.comments) == bool(said)
    assert said in "".join(job.comments)


def test_an_expired_artifact_says_run_again(job: PostJob) -> None:
    number = job.measured({})
    job.github.data.add_artifact(number, f"perfguard-{SLUG}-1", archive(GREEN), expired=True)
    assert job.posted() == "error"
    assert job.report["lanes"][0]["problem"].endswith("expired; run the lane again")


def test_the_latest_attempt_counts(job: PostJob) -> None:
    first = job.measured({SLUG: RED})
    job.measured({SLUG: GREEN}, attempt=2)
    for artifact in job.github.data.artifacts.values():
        artifact.run = job.number = first
    job.github.data.add_run(first, attempt=2)
    assert job.posted() == "success"


def test_a_report_of_an_earlier_attempt_is_named_as_such(job: PostJob) -> None:
    first = job.measured({SLUG: RED})
    job.github.data.add_run(first, attempt=2)
    assert job.posted() == "failure"
    assert job.report["warnings"] == [f"{SLUG}: the report is of attempt 1, since attempt 2 uploaded none"]
    assert "of attempt 1" in job.comments[0]


@pytest.mark.parametrize("headline", list(Headline))
@pytest.mark.parametrize("strict", [False, True])
def test_no_status_fails_without_a_comment(headline: Headline, strict: bool) -> None:
    overview: Any = SimpleNamespace(headline=headline, edits=[], lanes=[], run_url="")
    assert wants_comment(overview, strict) >= (_state(headline, strict) != "success")


# -- the base of the judgement -----------------------------------------------------------------------------------------


def test_baselines_and_settings_of_the_change_are_not_obeyed(job: PostJob) -> None:
    why = {"f": "trust me"}
    job.baselines(baseline_file(BASE), baseline_file({"f": entries(80.0), "g": entries()}, why))
    loose = b"[tool.perfguard]\nlanes = []\npair_minutes = 0.0\n"
    job.github.data.files[sha("head")]["pyproject.toml"] = loose
    job.measured({SLUG: RED})
    assert job.posted() == "failure"
    assert [(edit["metric"], edit["before"], edit["after"], edit["reason"]) for edit in job.report["edits"]] == [
        ("lanes", f'["{SLUG}"]', "[]", "takes effect when merged"),
        ("pair_minutes", None, "0.0", "takes effect when merged"),
        ("device_time_us", 50.0, 80.0, "trust me"),
    ]
    assert job.report["edits"][2]["loosens"] == "worst session 80.08 µs, was 50.05 µs"
    for said in ("trust me", "looser: worst session", "<code>pair&#95;minutes</code>", "none → <code>0&#46;0</code>"):
        assert said in job.comments[0]


@pytest.mark.parametrize("text", [b"[tool.perfguard", b"\xff", b"tool = 1", b"x = " + b"[" * 9000, b"#" * 300_000])
def test_settings_of_the_change_that_cannot_be_read_are_shown_as_such(job: PostJob, text: bytes) -> None:
    job.github.data.files[sha("head")]["pyproject.toml"] = text
    job.measured({SLUG: GREEN})
    assert job.posted() == "success"
    shown = [(edit["metric"], edit["after"]) for edit in job.report["edits"]]
    assert shown == [("every setting", "cannot be read"), ("lanes", None)]
    assert "lanes" in job.comments[0]


def test_an_accepted_finding_is_green_and_listed(job: PostJob) -> None:
    job.baselines(baseline_file(BASE), baseline_file({"f": entries(55.0), "g": entries()}, WHY))
    job.measured({SLUG: RED})
    assert job.posted() == "success"
    assert "accepted: 1 finding" in job.comments[0]
    assert "more accurate" in job.comments[0]
    assert job.statuses["perfguard"][0] == "success"


def test_an_edit_for_hardware_without_a_lane_is_listed_too(job: PostJob) -> None:
    other = baseline_file(BASE).replace(SLUG.encode(), OTHER.encode())
    path = f"baselines/{OTHER}/area.yaml"
    job.github.data.files[sha("fork-point")][path] = other
    job.github.data.files[sha("head")][path] = other.replace(b"launches: 1", b"launches: 9")
    job.measured({SLUG: GREEN})
    assert job.posted() == "success"
    assert [(edit["folder"], edit["after"], edit["loosens"]) for edit in job.report["edits"]] == [
        (OTHER, 9, "its value")
    ] * 2
    assert "looser: its" in job.comments[0]


GAVE_UP = dict.fromkeys(["perfguard", f"perfguard/{SLUG}"], ("error", "not judged: the post job gave up; run it again"))


def test_baselines_of_the_base_that_were_not_all_read_judge_nobody(
    job: PostJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comment_job, "MOST_FILES", 0)
    job.measured({SLUG: RED})
    assert job.post() is ExitStatus.NOT_POSTED
    assert "more than 0 files" in capsys.readouterr().err
    assert job.statuses == GAVE_UP


def test_baselines_of_the_change_that_were_not_all_read_are_an_error_and_hide_no_regression(
    job: PostJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.github.data.files[sha("head")] |= {f"baselines/{SLUG}/more{each}.yaml": b"x%d" % each for each in range(2)}
    monkeypatch.setattr(commit_files, "LEAST_CHANGES", 0)
    job.measured({SLUG: GREEN})
    assert job.posted() == "error"
    for context in ("perfguard", f"perfguard/{SLUG}"):
        state, said = job.statuses[context]
        assert state == "error"
        assert said.startswith("incomplete: the change's baselines: more than 1 changed files, or 16,000,000 bytes")
    assert "more than 1 changed files" in job.comments[0]
    job.measured({SLUG: RED})
    assert job.posted() == "failure"


def test_a_lane_may_hold_twice_the_cases_of_the_base(job: PostJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which knows two: as many as a limit that follows it allows."""
    monkeypatch.setattr(comment_limits, "LEAST_CASES", 1)
    job.measured({SLUG: compared(dict.fromkeys("fghk", 50.0))})
    assert job.posted() == "success"
    job.measured({SLUG: compared(dict.fromkeys("fghkl", 50.0))})
    assert job.posted() == "error"
    assert "5 items in a list, 4 at most; merge tests and their baselines in parts" in job.report["lanes"][0]["problem"]


def test_a_folder_of_no_lane_is_named_and_not_read(job: PostJob) -> None:
    job.github.data.files[sha("head")][f"baselines/{OTHER}/area.yaml"] = b"x"
    job.measured({SLUG: GREEN})
    assert job.posted() == "success"
    assert job.report["edits"] == []
    assert job.report["warnings"] == [
        f"the change's baselines: baselines/{OTHER}: no lane has this folder, nor the base: not read"
    ]


# -- process pairs -----------------------------------------------------------------------------------------------------

EARLIER = sha("earlier")
ANOTHER = f"compared with {EARLIER[:12]}, the merge base is {sha('fork-point')[:12]}; push again or reopen"
UNPAIRED = {
    "no pairs": (replace(RED, pairings=[]), "no process pair measured it"),
    "no base": (replace(RED, base=BaseTree(problem="<b>shallow</b> @org"), pairings=[]), "<b>shallow</b> @org"),
    "another base": (replace(RED, base=BaseTree(EARLIER), pairings=[paired({"f": 50.0}, base=EARLIER)]), ANOTHER),
    "equal to another base": (replace(RED, base=BaseTree(EARLIER, equal=True), pairings=[]), ANOTHER),
    "its own commit": (
        replace(RED, base=BaseTree(sha("head"), equal=True), pairings=[]),
        "give the lane --perfguard-base",
    ),
}


@pytest.mark.parametrize("what", UNPAIRED)
def test_times_without_pairs_of_the_merge_base_are_undecided_and_no_success(job: PostJob, what: str) -> None:
    given, said = UNPAIRED[what]
    job.measured({SLUG: given})
    assert job.posted() == "error"
    assert job.statuses["perfguard"][0] == "error"
    assert [verdict["word"] for verdict in times(job)] == ["UNRESOLVED"] * 2
    assert all(verdict["reason"].startswith("UNPAIRED: ") and said in verdict["reason"] for verdict in times(job))
    for text in (job.comments[0], job.summary, (job.folder / "out" / "report.md").read_text()):
        assert "<b>" not in text
        assert "@org" not in text


def test_a_tree_that_equals_the_merge_base_has_no_time_to_judge(job: PostJob) -> None:
    job.measured({SLUG: replace(RED, base=BaseTree(sha("fork-point"), equal=True), pairings=[])})
    assert job.posted() == "success"
    assert [verdict["word"] for verdict in times(job)] == ["UNCHANGED"] * 2


def test_a_tree_with_other_code_than_the_merge_base_does_not_equal_it(job: PostJob) -> None:
    given = replace(RED, base=BaseTree(sha("fork-point"), equal=True), pairings=[])
    for name, code in (("README.md", False), (f"baselines/{SLUG}/more.yaml", False), ("kernel.py", True)):
        job.github.data.files[sha("head")][name] = b"x"
        job.measured({SLUG: given})
        assert job.posted() == ("error" if code else "success")
        assert [verdict["word"] for verdict in times(job)] == ["UNRESOLVED" if code else "UNCHANGED"] * 2
    why = f"UNPAIRED: reported as equal to {sha('fork-point')[:12]}, but the change edits kernel.py; run the lane again"
    assert {verdict["reason"] for verdict in times(job)} == {why}


def test_forged_process_pairs_cost_their_case(job: PostJob) -> None:
    data = json.loads(dump_report(RED))
    data["pairings"][0]["cases"][0]["times"][0]["readings"][1] |= {"change": 1e300}
    job.measured({SLUG: archive(json.dumps(data).encode())})
    assert job.posted() == "error"
    assert job.statuses["perfguard"][0] == "error"
    assert "process pairs&#58; invalid value" in job.comments[0]
    assert [verdict["word"] for verdict in times(job)] == ["UNRESOLVED", "PASS"]


@pytest.mark.parametrize("event", ["push", "merge_group"])
def test_without_a_pull_request_there_are_status_and_summary(job: PostJob, event: str) -> None:
    job.measured({SLUG: RED}, event=event)
    assert job.posted() == "failure"
    assert job.comments == []
    assert job.statuses["perfguard"][0] == "failure"
    assert job.report["base"] == sha("head")  # judged by its own baselines
    # Neither the event nor this branch names the commit before: the report is trusted.
    (said,) = job.report["warnings"]
    assert said.startswith(f"{SLUG}: compared with {sha('fork-point')[:12]}, as the report says: ")
    job.measured({SLUG: replace(GREEN, base=BaseTree(sha("head"), equal=True), pairings=[])}, event=event)
    assert job.posted() == "success"
    assert "its own commit, so that nothing can differ; give the lane --perfguard-base" in job.report["warnings"][0]


def test_a_merge_group_is_compared_with_what_it_was_queued_on(job: PostJob) -> None:
    queue = "gh-readonly-queue/release/1/pr-7-"
    job.github.data.add_comparison("fork-point", "head", "fork-point")
    job.measured({SLUG: RED}, event="merge_group", head_branch=queue + sha("fork-point"))
    assert job.posted() == "failure"
    assert job.report["warnings"] == []
    job.measured({SLUG: RED}, event="merge_group", head_branch=queue + sha("base"))
    assert job.posted() == "error"
    assert all(f"the merge base is {sha('base')[:12]}" in verdict["reason"] for verdict in times(job))
    for event in ("push", "pull_request"):  # anybody may call a branch so, and push to it
        job.github.data.pulls[7]["head"]["ref"] = queue + sha("base")
        job.measured({SLUG: RED}, event=event, head_branch=queue + sha("base"))
        assert job.posted() == "failure"


# -- documents alone ---------------------------------------------------------------------------------------------------

QUEUED = {"event": "merge_group", "head_branch": f"gh-readonly-queue/main/pr-7-{sha('base')}"}


@pytest.mark.parametrize("run", [{}, QUEUED], ids=["pull request", "merge queue"])
def test_a_change_of_documents_alone_needs_no_lane_and_is_green(job: PostJob, run: dict[str, Any]) -> None:
    """No report, no red, no `no result`: the required status comes, and the lanes' own."""
    for name in ("README.md", "docs/a guide.RST", "docs/picture.png"):
        job.github.data.files[sha("head")][name] = b"x"
    job.measured({SLUG: None, OTHER: None}, **run)
    assert job.posted(lanes=[SLUG, OTHER]) == "success"
    said = "nothing to measure: only documents changed"
    contexts = ("perfguard", f"perfguard/{SLUG}", f"perfguard/{OTHER}")
    assert job.statuses == dict.fromkeys(contexts, ("success", said))
    assert headline(job) == f"### ✅ perfguard: {said}"
    assert job.comments == []
    page = (job.folder / "out" / "report.html").read_text()
    for text in (job.summary, page):
        assert said in text
        assert "no result" not in text


def test_a_comment_on_code_that_a_later_push_takes_back_turns_green(job: PostJob) -> None:
    job.github.data.files[sha("head")]["kernel.py"] = b"x"
    job.measured({SLUG: RED})
    assert job.posted() == "failure"
    del job.github.data.files[sha("head")]["kernel.py"]
    job.github.data.files[sha("head")]["README.md"] = b"x"
    job.measured({SLUG: None})
    assert job.posted() == "success"
    (comment,) = job.comments
    assert comment.startswith("### ✅ perfguard: nothing to measure: only documents changed")
    assert "Resolved in" in comment


@pytest.mark.parametrize(
    "names",
    [
        ["README.md", "kernel.py"], ["docs/conf.py"], ["docs/requirements.txt"], [f"baselines/{SLUG}/more.yaml"],
        ["pyproject.toml"], ["README.md.py"], ["md"], [f"{number}.md" for number in range(300)],
    ],
    ids=lambda names: names[-1],
)  # fmt: skip
def test_any_other_change_needs_its_lanes(job: PostJob, names: list[str]) -> None:
    """Of 300 files GitHub lists no more, so that others may follow."""
    job.github.data.files[sha("head")] |= dict.fromkeys(names, b"x")
    job.measured({SLUG: None})
    assert job.posted() == "error"
    assert "no result" in job.comments[0]


def test_a_lane_that_measured_documents_all_the_same_is_judged(job: PostJob) -> None:
    job.github.data.files[sha("head")]["README.md"] = b"x"
    job.measured({SLUG: RED, OTHER: None})
    assert job.posted(lanes=[SLUG, OTHER]) == "failure"
    assert "1 case slower" in headline(job)
    assert "without a result" not in headline(job)


# -- untrusted text ----------------------------------------------------------------------------------------------------


def test_commands_of_the_runner_in_names_are_harmless(job: PostJob, capfd: pytest.CaptureFixture[str]) -> None:
    job.environ["GITHUB_ACTIONS"] = "true"
    name = "f\n::error::boo\n::stop-commands::x"
    job.measured({SLUG: compared({name: 55.0, "f": 50.0, "g": 50.0})})
    for _ in range(2):
        job.post()
    out, err = capfd.readouterr()
    marks = []
    open_token = ""
    for line in f"{out}\n{err}".splitlines():
        if line.startswith("::") and not open_token:
            assert line.startswith("::stop-commands::perfguard-"), line
            open_token = line.removeprefix("::stop-commands::")
            marks.append(open_token)
        elif line == f"::{open_token}::":
            open_token = ""
    assert open_token == ""
    assert len(set(marks)) == len(marks) > 1  # the author of the change cannot know them
    assert "::error" not in out + err


# -- posting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize(
    ("broken", "raised"),
    [("gather", GitHubError("gone")), ("gather", UsageError("no")), ("_write_files", RuntimeError("a bug"))],
)
def test_a_job_that_gives_up_says_so_where_green_stood(
    job: PostJob, monkeypatch: pytest.MonkeyPatch, attempt: int, broken: str, raised: Exception
) -> None:
    first = job.measured({SLUG: GREEN})
    job.post()
    assert {state for state, _ in job.statuses.values()} == {"success"}
    job.github.data.add_run(first, attempt=attempt)

    def give_up(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(comment_job, broken, give_up)
    if isinstance(raised, GitHubError):
        assert job.post() is ExitStatus.NOT_POSTED
    else:
        with pytest.raises(type(raised)):
            job.post()
    assert job.statuses == GAVE_UP


def test_posting_trouble_changes_no_verdict_and_loses_no_report(
    job: PostJob, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (RED, GREEN):
        job.measured({SLUG: given})
        for _ in range(2):
            job.github.fail(method="POST", status=403, body={"message": "Resource not accessible by integration"})
        assert job.post() is ExitStatus.NOT_POSTED
        assert (job.folder / "out" / "report.md").exists()
        assert TOKEN not in capsys.readouterr().err


def test_a_full_disk_still_posts(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    (job.folder / "out").write_text("a file where the folder should be")
    job.environ["GITHUB_STEP_SUMMARY"] = str(job.folder / "none" / "summary.md")
    job.measured({SLUG: RED})
    assert job.posted() == "failure"
    assert len(job.comments) == 1
    said = capsys.readouterr().err
    assert "report.md: not written" in said
    assert "summary was not written" in said


def test_a_large_summary_ends_with_whole_parts(job: PostJob, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [measured(f"case_{number}") for number in range(300)]
    job.measured({SLUG: report([*cases, measured("f"), measured("g")])})
    monkeypatch.setattr(comment_job, "SUMMARY_BYTES", 20_000)
    job.post()
    assert 0 < len(job.summary.encode()) <= 20_000
    assert "Shortened" in job.summary
    assert job.summary.count("<details>") == job.summary.count("</details>")
    whole = (job.folder / "out" / "report.md").read_text()
    assert "Shortened" not in whole
    assert "case&#95;299" in whole


def test_only_a_pull_request_of_its_own_gets_comment_and_status(
    job: PostJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.github.data.add_pull(8, base_ref="release")  # which one was measured cannot be told
    job.measured({SLUG: RED})
    assert job.post() is ExitStatus.PASSED
    for pull in job.github.data.pulls.values():
        pull["state"] = "closed"
    assert job.post() is ExitStatus.PASSED
    assert job.github.writes == []
    assert "1 case slower" in headline(job)
    said = capsys.readouterr().err
    assert "#7, #8 share the head" in said
    assert "no open pull request" in said


def test_a_token_that_is_not_the_jobs_own_needs_no_setting(job: PostJob) -> None:
    job.github.data.owner = {"login": "guard[bot]", "type": "Bot"}
    for given in (RED, GREEN):
        job.measured({SLUG: given})
        job.post()
    assert len(job.comments) == 1
    assert "Resolved in" in job.comments[0]


# -- the order of runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("again", ["an attempt", "a run"])
def test_the_job_of_an_earlier_run_changes_nothing_that_a_newer_one_posted(
    job: PostJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], again: str, gives_up: bool
) -> None:
    """The maintainer runs the post job of a green attempt again, after a later attempt was red."""
    first = job.measured({SLUG: GREEN})
    earlier = dict(job.github.data.runs[first])
    assert job.posted() == "success"
    if again == "an attempt":
        job.measured({SLUG: RED}, attempt=2)
        for artifact in job.github.data.artifacts.values():
            artifact.run = first
        job.github.data.add_run(first, attempt=2)
        job.number = first
    else:
        job.measured({SLUG: RED})
    assert job.posted() == "failure"
    before = job.comments, job.statuses, job.github.writes
    assert job.statuses["perfguard"][0] == "failure"
    capsys.readouterr()

    def give_up(*_: object, **__: object) -> None:
        raise GitHubError("gone")

    if gives_up:
        monkeypatch.setattr(comment_job, "gather", give_up)
    assert job.post(given=earlier) is (ExitStatus.NOT_POSTED if gives_up else ExitStatus.PASSED)
    assert (job.comments, job.statuses, job.github.writes) == before
    newer = "attempt 2 of run 5001" if again == "an attempt" else "attempt 1 of run 5002"
    assert f"no statuses: {newer}, which is newer, has reported" in capsys.readouterr().err


@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_gives_up_touches_no_commit_that_it_shares(
    job: PostJob, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Anyone may open a pull request of somebody else's commit; what its run meets is no word on that commit."""
    job.measured({SLUG: GREEN})
    job.post()
    before = job.statuses
    job.github.data.add_pull(8, branch="stolen", source=repository(3, "thief/r"))
    job.measured({SLUG: RED}, head_branch="stolen", head_repository=repository(3, "thief/r"))
    if known:
        monkeypatch.setattr(comment_job, "MOST_FILES", 0)
    else:
        job.github.fail(path="/pulls$", status=404, body={"message": "Not Found"})
    assert job.post() is ExitStatus.NOT_POSTED
    assert job.statuses == before


# -- the time of the job -----------------------------------------------------------------------------------------------


def test_waits_that_github_asks_for_end_before_the_job_does(
    job: PostJob, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    job.measured({SLUG: RED})
    job.github.fail(times=999, status=429, headers={"retry-after": "299"}, body={"message": "rate limit"})
    started = clock.now
    assert job.post() is ExitStatus.NOT_POSTED
    assert clock.now - started < 600
    assert "no answer before the deadline; run the job again after" in capsys.readouterr().err


READ = ["/pulls$", "/compare/", "/zip$", "/blobs/", "/artifacts$"]


@pytest.mark.parametrize("slow", [4, 5])
def test_statuses_are_set_though_reading_used_up_its_time(job: PostJob, clock: FakeClock, slow: int) -> None:
    limited: dict[str, Any] = {"status": 429, "headers": {"retry-after": "59"}, "body": {"message": "rate limit"}}
    job.measured({SLUG: RED})
    started = clock.now
    for path in READ[:slow]:
        job.github.fail(times=2, path=path, **limited)
    job.github.fail(path="/statuses", **limited)
    job.post()
    assert job.statuses["perfguard"][0] == ("failure" if slow < len(READ) else "error")  # Not all was read then.
    assert 470 < clock.now - started < 600


def test_without_a_token_nothing_is_asked_or_posted(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.environ["GITHUB_TOKEN"] = ""
    job.measured({SLUG: RED})
    assert job.post() is ExitStatus.NOT_POSTED
    assert "perfguard: comment skipped: no token in GITHUB_TOKEN; " in capsys.readouterr().err
    assert job.github.requests == []


def test_a_run_of_another_workflow_is_left_alone(job: PostJob, capsys: pytest.CaptureFixture[str]) -> None:
    other = ".github/workflows/other.yml"
    job.measured({SLUG: RED}, path=other)
    assert job.post() is ExitStatus.PASSED
    assert job.github.writes == []
    assert "of another workflow" in capsys.readouterr().err
    assert job.posted(workflow=other) == "failure"


def test_no_expected_lane_is_a_mistake(job: PostJob) -> None:
    job.measured({SLUG: RED})
    with pytest.raises(UsageError, match=r"name those of measure\.yml"):
        job.post(lanes=[])
