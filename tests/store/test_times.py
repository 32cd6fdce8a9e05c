"""Anchors: growth over many recordings asks for a reason, noise does not, and what was gained is kept."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfguard.judge.record import OTHER_BOARD, anchor_of, grow
from perfguard.judge.update_plan import plan
from perfguard.model.config import CATEGORIES
from perfguard.model.records import Across, Better, Provenance, TimedEntry
from perfguard.model.records.baseline import MOST_SESSIONS
from perfguard.model.records.change import select
from perfguard.store.baseline_files import Store, apply
from tests.store import lane_of
from tests.store.creep import GPU, READING, SUITE, TIME, read, record, simulated

levels = st.floats(1.0, 1e4)
promises = st.sampled_from([0.03, 0.1, 0.5])


def entry(us: float, anchor: float | None = None) -> TimedEntry:
    return TimedEntry([us] * 5, "graph", anchor)


@pytest.mark.parametrize(
    ("stored", "anchor", "now", "one_board", "asks", "kept"),
    [
        (50.0, None, 51.4, True, False, 50.0),
        (50.0, None, 51.6, True, True, None),
        (50.0, None, 51.6, False, False, 50.0),  # one recording on another board
        (51.7, 50.0, 51.6, False, True, None),  # the second one
        (50.0, None, 53.8, False, True, None),  # more than a board does
        (51.4, 50.0, 52.0, True, True, None),  # however small the steps
        (50.0, None, 48.0, True, False, None),  # gained: the anchor follows
        (50.0, None, 48.0, False, False, 50.0),
        (48.1, 50.0, 48.0, False, False, None),
        (50.0, None, 30.0, False, False, 50.0),
        (48.0, 50.0, 48.9, True, False, 50.0),
    ],
)
def test_what_becomes_of_the_anchor(
    stored: float, anchor: float | None, now: float, one_board: bool, asks: bool, kept: float | None
) -> None:
    found = grow(entry(stored, anchor), entry(now), READING, one_board=one_board)
    assert (found.needs_reason, found.entry.anchor) == (asks, kept)
    assert found.over == pytest.approx(math.log(now / (anchor or stored)))


@given(stored=levels, anchor=st.none() | levels, now=levels, promise=promises, one_board=st.booleans())
def test_nothing_grows_beyond_its_promise_without_a_word(
    stored: float, anchor: float | None, now: float, promise: float, one_board: bool
) -> None:
    before, reading = entry(stored, anchor), replace(READING, promise=promise)
    found = grow(before, entry(now), reading, one_board=one_board)
    grown = now > anchor_of(before) * (1 + promise) * (1 + 1e-9)
    kept = now < anchor_of(before) * (1 + promise) * (1 - 1e-9)
    if grown:
        assert found.needs_reason or (found.is_open and now <= anchor_of(before) * (1 + OTHER_BOARD) * (1 + 1e-9))
        assert found.needs_reason or not one_board
    if kept:
        assert not found.needs_reason
        assert not found.is_open
    assert found.needs_reason or anchor_of(found.entry) <= anchor_of(before)  # only a reason lifts an anchor


def test_a_floor_and_a_reading_of_which_more_is_better() -> None:
    coarse, more = replace(READING, floor=5.0), replace(READING, better=Better.HIGHER)
    asked = [(coarse, 54.0, False), (coarse, 55.1, True), (more, 48.0, True), (more, 52.0, False)]
    for reading, now, asks in asked:
        assert grow(entry(50.0), entry(now), reading, one_board=True).needs_reason is asks


def test_what_is_only_shown_or_beside_a_rival_is_not_stored() -> None:
    assert READING.is_recorded
    assert replace(READING, gated=False, across=Across.EQUAL).is_recorded  # of several ranks
    assert not any(replace(READING, **field).is_recorded for field in ({"gated": False}, {"rival": 9.0}))


# -- by the real planner ---------------------------------------------------------------------------------------------


def test_what_is_left_says_how_much_since_when_and_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day, us in enumerate((50.0, 51.0, 51.2)):
        record(store, {0: us}, day, board="a")
    judged = read(0, 52.0, 3)
    changes = plan(lane_of(store, GPU, Provenance()), [judged], {}, [], Provenance(board="a"))
    why = {change.metric: why for change, why in select(changes, CATEGORIES, "")[1]}
    assert why[TIME] == (
        "+4.0 % over its anchor of 50 µs, last recorded 2026-11-03 at 0000002; say why with --perfguard-reason"
    )
    assert TIME in why["fingerprint"]
    elsewhere = next(
        each
        for each in plan(lane_of(store, GPU, Provenance()), [judged], {}, [], Provenance(board="b"))
        if each.metric == TIME
    )
    assert not elsewhere.needs_reason
    assert elsewhere.note == (
        "+4.0 % over its anchor of 50 µs, last recorded 2026-11-03 at 0000002, in one recording on another board: "
        "the next one that reads so needs a reason"
    )


def joining(store: Store, *given: float, board: str = "a", code: bool = True, reason: str = "") -> list[str]:
    """Record the readings of one case one after another, all of one code, which nothing tells where `code` is false;
    answers why each was left."""
    left = []
    for us in given:
        judged = read(0, us, 0)
        if store.load(GPU.slug, SUITE):
            judged = replace(judged, verdicts=[])
        if not code:
            judged = replace(judged, readings=[replace(each, covers=[]) for each in judged.readings])
        chosen, waiting = select(
            plan(lane_of(store, GPU, Provenance()), [judged], {}, [], Provenance(board=board)), CATEGORIES, reason
        )
        apply(store, chosen, Provenance(board=board), reason)
        left += [f"{change.category}: {why}" for change, why in waiting]
    return left


def stored(store: Store) -> TimedEntry:
    known = store.load(GPU.slug, SUITE)
    assert known is not None
    time = known.cases["case0/forward"].entries[TIME]
    assert isinstance(time, TimedEntry)
    return time


@pytest.mark.parametrize("code", [True, False])
def test_each_recording_adds_a_session_and_the_ninth_drops_the_oldest(tmp_path: Path, code: bool) -> None:
    store = Store(tmp_path)
    assert joining(store, 50.0, 50.2, code=code) == []
    assert stored(store) == TimedEntry([50.0, 50.2], "graph")
    assert joining(store, 50.2, *[50.6] * 5, code=code) == []
    assert stored(store) == TimedEntry([50.0, 50.2, 50.2, *[50.6] * 5], "graph", 50.2)  # the level of the first three
    assert joining(store, 50.7, code=code) == []
    assert stored(store) == TimedEntry([50.2, 50.2, *[50.6] * 5, 50.7], "graph", 50.2)
    assert len(stored(store).sessions) == MOST_SESSIONS


def test_sessions_that_creep_ask_for_a_reason_unless_the_code_is_the_same(tmp_path: Path) -> None:
    """Each lies within the promise of the level before it. What the same code takes on another day is no growth."""
    climb = [50.0 * 1.01**step for step in range(12)]
    same, unknown = Store(tmp_path / "same"), Store(tmp_path / "unknown")
    assert joining(same, *climb) == []
    assert stored(same).anchor == 50.5  # of the first three
    left = joining(unknown, *climb, code=False)
    assert left[0].startswith("slower: +")
    assert "over its anchor of 50.5 µs" in left[0]
    assert joining(unknown, climb[-1], code=False, reason="more accurate") == []
    assert stored(unknown).anchor is None


def test_a_record_of_several_boards_is_of_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    boards = []
    for board in "aaba":
        joining(store, 50.0, board=board)
        known = store.load(GPU.slug, SUITE)
        assert known is not None
        boards.append(known.provenance_of("case0/forward").board)
    assert boards == ["a", "a", None, None]
    assert stored(store).sessions == [50.0] * 4


def test_creep_is_found_on_changing_boards(tmp_path: Path) -> None:
    first = simulated(Store(tmp_path), cases=200, days=10, step=math.log(1.008), seed=1)
    assert 4 <= median(first.values()) <= 6
    assert sum(day <= 7 for day in first.values()) >= 0.95 * 200
