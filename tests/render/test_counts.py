"""Every form says the same counts of the same words, and the statuses and exit statuses agree with them."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest

from perfguard.github.outcome import exit_status, is_resolved, statuses, wants_comment
from perfguard.judge.pair_test import PairVerdict
from perfguard.judge.run_verdicts import count_guarded
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Reading, Report, Verdict, Word
from perfguard.model.records.case import is_inconclusive
from perfguard.render.html import render_html
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Headline, LaneView, Overview
from perfguard.render.terminal import render_summary
from perfguard.render.title import title_of
from perfguard.render.words import tally, why
from tests.render.examples import EXAMPLES, FINE, NOISY, PASSED, SLOWER, UNPAIRED, lane, overview, result

PASSED_HOST = msgspec.structs.replace(PASSED, metric="host_time_us")
FINAL = [word for word in Word if word not in (Word.SUSPECT, Word.STALE)]
COUNTS = Counter({word: place + 2 for place, word in enumerate(FINAL)} | {Word.STALE: 3})


def every_word() -> LaneView:
    """A lane with another number of cases for each word; those in question make up a part of its times."""
    cases = [
        result(
            f"{word}_{number}",
            Verdict(word, "device_time_us", "NOISY: …", before=61.2, after=62.0, unit=SLOWER.unit, ratio=1.013),
            us=None if word in (Word.WRONG, Word.BROKEN) else 62.0,
        )
        for word in FINAL
        for number in range(COUNTS[word])
    ]
    view = lane("nvidia-h200", *cases)
    assert view.report is not None
    gone = [Verdict(Word.STALE, reason="gone", suite="norms", case=f"gone[{number}]/forward") for number in range(3)]
    return msgspec.structs.replace(view, report=msgspec.structs.replace(view.report, stale=gone))


def report_of(view: LaneView) -> Report:
    assert view.report is not None
    return view.report


def test_every_form_says_the_same_counts_of_the_same_words() -> None:
    view = every_word()
    whole, told = overview(view), tally(COUNTS)
    assert whole.lanes[0].counts == COUNTS

    terminal = [line.text for line in render_summary(report_of(view)).lines]
    assert terminal[1].startswith(f"{told}; ")
    undecided = whole.undecided
    assert undecided.cases == COUNTS[Word.UNRESOLVED]
    assert any(line.startswith(f"UNRESOLVED  {undecided}: ") for line in terminal)

    markdown = render_markdown(whole)
    header, _, row = (line.split(" | ") for line in markdown.split("| Lane | ")[1].splitlines()[:3])
    row = row[1:]  # the header's first cell was split off
    assert {word: int(row[header.index(word)]) for word in COUNTS} == COUNTS

    page = json.loads(render_html(whole).partition('id="data">')[2].partition("</script>")[0])
    assert Counter(case["word"] for case in page["cases"]) == COUNTS - Counter({Word.STALE: 3})

    title = title_of(whole)
    words = [f"{COUNTS[word]} {word.lower()}" for word in (Word.BROKEN, Word.SLOWER, Word.CHANGED, Word.FASTER)]
    assert title.startswith(f"{COUNTS[Word.WRONG]} cases wrong, ")
    assert all(f", {text}" in title for text in [*words, str(undecided)])
    assert {status.description for status in statuses(whole, strict=False)} == {title}
    assert title in markdown.splitlines()[0]


OPEN = [Verdict(Word.UNRESOLVED, "device_time_us", "UNPAIRED: no git"), Verdict(Word.PASS, "contract")]


@pytest.mark.parametrize("word", [word for word in FINAL if word is not Word.BROKEN])
def test_every_form_says_one_count_of_guarded_cases(word: Word) -> None:
    """A case counts once, by its worst verdict: one whose exact metrics passed and whose time is open is not guarded."""
    mixed = [
        result(f"mixed{n}", Verdict(word, "device_time_us", "NOISY: …"), Verdict(Word.PASS, "contract"))
        for n in range(38)
    ]
    view = lane("nvidia-h200", *mixed, *(result(f"open{n}", *OPEN) for n in range(3)), result("fine"))
    judged = msgspec.structs.replace(report_of(view), guarded=count_guarded(report_of(view).results))
    view = msgspec.structs.replace(view, report=judged)
    judged_words = (Word.SLOWER, Word.CHANGED, Word.FASTER, Word.BETTER, Word.OLD_FAULT, Word.UNCHANGED, Word.PASS)
    guarded = 39 if word in judged_words else 1
    told = f"{guarded} of 42 cases guarded"
    whole = overview(view)
    assert judged.guarded == guarded
    assert told in render_summary(judged).title
    row = next(line for line in render_markdown(whole).splitlines() if line.startswith("| <code>nvidia-h200"))
    assert row.endswith(f"| {guarded} of 42 |")
    assert f"; {told}</p>" in render_html(whole)


UNDECIDED_RUNS = [
    ([UNPAIRED], Headline.INCONCLUSIVE),
    ([NOISY, None], Headline.UNDECIDED),  # half is not most
    ([UNPAIRED, None], Headline.UNVERIFIED),
    ([UNPAIRED, UNPAIRED, None], Headline.INCONCLUSIVE),
    ([Verdict(Word.UNRESOLVED, "contract", "remembered, but not read this time")], Headline.UNDECIDED),
    ([Verdict(Word.UNRESOLVED, reason="its test was skipped"), None], Headline.UNDECIDED),
]


@pytest.mark.parametrize(("found", "headline"), UNDECIDED_RUNS)
def test_a_lane_is_inconclusive_where_most_of_its_times_are(found: list[Verdict | None], headline: Headline) -> None:
    cases = [result(f"case{n}", *([verdict] if verdict else [])) for n, verdict in enumerate(found)]
    view = lane("nvidia-h200", *cases)
    whole = overview(view, FINE)
    assert whole.headline is headline
    open_ = whole.lanes[0].undecided
    assert is_inconclusive(cases) is view.is_inconclusive is (2 * open_.cases > open_.of)
    assert render_summary(report_of(view)).title.endswith(", inconclusive") is view.is_inconclusive


def test_a_case_is_open_where_one_of_its_times_is() -> None:
    host = Reading("host_time_us", SLOWER.unit, 9.0, timer="host-low-u16")
    both = [UNPAIRED, msgspec.structs.replace(UNPAIRED, metric="host_time_us")]
    cases = [result("one", *both[:1], PASSED_HOST), result("two", *both), result("fine", PASSED, PASSED_HOST)]
    cases = [msgspec.structs.replace(case, readings=[*case.readings, host]) for case in cases]
    open_ = overview(lane("nvidia-h200", *cases)).undecided
    assert str(open_) == "2 of 3 timed cases could not be judged"
    assert len(open_.findings) == 3
    assert is_inconclusive(cases)


def test_a_slower_case_was_judged_though_its_host_time_was_not() -> None:
    host = Reading("host_time_us", SLOWER.unit, 9.0, timer="host-low-u16")
    undecided = Verdict(Word.UNRESOLVED, "host_time_us", "UNDECIDED: too few process pairs")
    slower = result("one", Verdict(Word.SLOWER, "device_time_us", before=1.0, after=2.0), undecided)
    passed = result("two", PASSED, undecided)
    cases = [msgspec.structs.replace(case, readings=[*case.readings, host]) for case in (slower, passed)]
    assert str(overview(lane("nvidia-h200", *cases)).undecided) == "1 of 2 timed cases could not be judged"


def test_what_an_edit_covers_is_judged() -> None:
    view = EXAMPLES[Headline.INCONCLUSIVE].lanes[0]
    covered = msgspec.structs.replace(view, accepted=[("norms", "softmax/forward", "device_time_us")])
    assert view.is_inconclusive
    assert not covered.is_inconclusive
    assert str(overview(covered).undecided) == "1 of 2 timed cases could not be judged"


def states(whole: Overview, strict: bool) -> dict[str, str]:
    return {status.context: status.state for status in statuses(whole, strict)}


def test_inconclusive_is_no_success_and_is_commented() -> None:
    whole = EXAMPLES[Headline.INCONCLUSIVE]
    assert states(whole, strict=False) == {
        "perfguard/nvidia-h200": "error", "perfguard/amd-mi300x": "success", "perfguard": "error",
    }  # fmt: skip
    assert states(whole, strict=True)["perfguard"] == "failure"
    assert exit_status(whole, strict=False) is ExitStatus.UNGUARDED
    assert wants_comment(whole, False)
    assert not is_resolved(whole, False)
    why_ = "2 of 5 timed cases could not be judged: not measured beside a base"
    assert statuses(whole, strict=False)[0].description == f"inconclusive on 1 of 2 lanes: {why_}"


def test_a_few_undecided_times_are_told_and_succeed() -> None:
    whole = EXAMPLES[Headline.UNDECIDED]
    assert states(whole, strict=False)["perfguard"] == "success"
    assert states(whole, strict=True)["perfguard"] == "failure"
    assert exit_status(whole, strict=False) is ExitStatus.PASSED
    assert exit_status(whole, strict=True) is ExitStatus.UNGUARDED
    assert not wants_comment(whole, False)
    assert (
        statuses(whole, strict=False)[0].description == "undecided: 1 of 4 timed cases could not be judged: too noisy"
    )


def test_a_reason_is_read_as_the_judge_writes_it() -> None:
    """The change and the interval stand in fields of their own; the outputs leave them out of the reason."""
    found = PairVerdict(Word.SLOWER, 0.0592, (0.0535, 0.0649), pairs=3, smallest=0.02)
    told = msgspec.structs.replace(SLOWER, reason=f"{found}; because: launches 1 -> 2")
    assert why(told) == "in 3 process pairs; because: launches 1 -> 2"
    assert why(msgspec.structs.replace(told, interval=None)) == told.reason
