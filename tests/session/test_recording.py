"""What an update says of what it writes and leaves: whole where it is short, by suite or folder where it is long."""

from __future__ import annotations

import msgspec

from perfguard.model.records import Case, CaseResult, TimedEntry, Verdict, Word
from perfguard.model.records.change import Change
from perfguard.model.units import Unit
from perfguard.render.update_text import MOST_LINES, describe_changes, describe_left, mark_recorded
from perfguard.render.words import describe_verdict


def change(number: int, *, folder: str = "gpu", suite: str = "suite", before: int | None = None) -> Change:
    """One of as many launches as its number."""
    return Change(
        category="new" if before is None else "changed", folder=folder, suite=suite, key=f"f[{number}]/forward",
        metric="launches", before=before, after=number, unit=Unit.COUNT,
    )  # fmt: skip


TIME = Change(
    category="new", folder="gpu", suite="suite", key="f[1]/forward", metric="device_time_us", before=None,
    after=TimedEntry(sessions=[50.0, 51.0], timer="graph"), unit=Unit.MICROSECONDS, note="two of five",
)  # fmt: skip


def test_growth_is_shown_between_the_records_whatever_one_process_read() -> None:
    """It may have been quicker than the others, whose median is recorded."""
    grown = msgspec.structs.replace(
        TIME, category="slower", needs_reason=True, grown="+40.0 % over its anchor of 50 µs",
        before=TimedEntry(sessions=[50.0, 50.0, 90.0], timer="graph"),
        after=TimedEntry(sessions=[49.0, 70.0, 71.0], timer="graph"),
    )  # fmt: skip
    case = Case("suite", "f[1]", "forward")
    read = Verdict(Word.UNCHANGED, "device_time_us", before=50.0, after=49.0, ratio=0.98, unit=Unit.MICROSECONDS)
    results = {case.id: CaseResult(case=case, verdicts=[read])}
    mark_recorded(results, [grown], ())
    (said,) = results[case.id].verdicts
    assert (said.word, said.reason) == (Word.SLOWER, "+40.0 % over its anchor of 50 µs")
    assert describe_verdict(said)[0] == "SLOWER device_time_us: 50 µs -> 70 µs (+40.0 %)"


def test_a_few_new_cases_take_a_line_each() -> None:
    assert describe_changes([change(1), TIME, change(2)]) == [
        "new: gpu suite f[1]/forward: launches 1, device_time_us 51 µs (two of five)",
        "new: gpu suite f[2]/forward: launches 2",
        "1 time of 1 case: a record screens from 3 sessions on, each update adds one",
    ]
    assert describe_changes([]) == []


def test_sessions_that_join_take_one_line_but_for_what_is_remarkable() -> None:
    before = TimedEntry(sessions=[50.0, 51.0], timer="graph")
    joined = [
        msgspec.structs.replace(
            TIME, key=f"f[{number}]/forward", metric=metric, note="", before=before,
            after=msgspec.structs.replace(before, sessions=[50.0, 51.0, 52.0]),
        )
        for number in range(40) for metric in ("device_time_us", "host_time_us")
    ]  # fmt: skip
    wide = msgspec.structs.replace(joined[0], note="unstable")
    assert describe_changes([wide, *joined[1:]]) == ["new: 79 times of 40 cases: another session", wide.describe()]
    assert describe_changes(joined[:1], verbose=True) == [joined[0].describe()]
    slower = msgspec.structs.replace(joined[0], category="slower")
    assert describe_changes([slower]) == [slower.describe()]  # in place of what was stored


def test_many_take_one_line_for_a_suite() -> None:
    many = [change(number, suite=suite) for suite in ("a", "b") for number in range(20)]
    assert len(describe_changes(many, verbose=True)) == 40
    assert describe_changes([*many, TIME]) == [
        "new: gpu a: 20 cases, 20 values",
        "new: gpu b: 20 cases, 20 values",
        "new: gpu suite: 1 case, 1 value",
        "each new case: -v",
        "1 time of 1 case: a record screens from 3 sessions on, each update adds one",
    ]


def test_changes_of_what_is_known_are_shown_whatever_is_new() -> None:
    new = [change(number) for number in range(40)]
    known = [change(number, before=90) for number in range(1, 20)]
    lines = describe_changes([*new, *known[:2]])
    assert lines[:2] == ["new: gpu suite: 40 cases, 40 values", "each new case: -v"]
    assert lines[2:] == [each.describe() for each in known[:2]]
    lines = describe_changes(known)
    assert lines == [*(each.describe() for each in known[: MOST_LINES - 1]), "… and 12 more; all: -v"]
    assert len(describe_changes(known, verbose=True)) == 19


def test_what_is_left_is_told_by_its_reason() -> None:
    left = [(change(number, before=90), "not asked for") for number in range(20)]
    odd = (change(99, before=90), "refused")
    assert describe_left([*left, odd]) == ["20 changes: not asked for", f"{odd[0].describe()}; refused"]
    assert describe_left(left[:2]) == [f"{each.describe()}; not asked for" for each, _ in left[:2]]
    assert len(describe_left(left, verbose=True)) == 20
    each_its_own = [(each, f"refused {number}") for number, (each, _) in enumerate(left)]
    assert len(describe_left(each_its_own)) == MOST_LINES
