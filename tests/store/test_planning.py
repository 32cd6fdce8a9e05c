"""From verdicts to changes: the category, the entry that would be written, and what stands in its way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfguard.judge.screen import Controls, within_record
from perfguard.judge.statistics import UNLEARNT, history_of
from perfguard.judge.update_plan import plan
from perfguard.measure.metrics.times import HOST_TIME, LIMITS
from perfguard.model.config import CATEGORIES
from perfguard.model.records import (
    Accuracy,
    Baseline,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.change import Change, category_of, select, show_apart
from perfguard.model.units import Unit
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import render
from tests.store import lane_of

SLUG, SUITE, KEY = "nvidia-h200", "fp8", "quantize[64x48]/forward"
NODEID = "tests/test_fp8.py::test_quantize[64x48]"
CASE = Case(suite=SUITE, name="quantize[64x48]", direction="forward", nodeid=NODEID)
GPU = Hardware(slug=SLUG, vendor="nvidia", name="NVIDIA H200", architecture="sm_90")
CPU = Hardware(slug="cpu-x", vendor="cpu", name="X", architecture="x86_64", target="cpu")
NOW = Provenance(torch="2.11.0", driver="580.1", power_limit_watts=700.0, commit="2b", recorded="2026-11-21")
STORED = replace(NOW, commit="1a", recorded="2026-11-20")
TIME, LAUNCHES, NAMES = "device_time_us", "launches", "kernels"


def timed(value: float, timer: str = "graph", **fields: object) -> Reading:
    return Reading(metric=TIME, unit=Unit.MICROSECONDS, value=value, timer=timer, **fields)  # type: ignore[arg-type]


def exact(value: Value, metric: str = LAUNCHES, **fields: object) -> Reading:
    return Reading(metric=metric, unit=Unit.COUNT, value=value, **fields)  # type: ignore[arg-type]


def result(*pairs: tuple[Reading, Word | None], inputs: str = "bf16", reason: str = "") -> CaseResult:
    verdicts = [Verdict(word, reading.metric, reason) for reading, word in pairs if word is not None]
    return CaseResult(case=CASE, inputs=inputs, readings=[reading for reading, _ in pairs], verdicts=verdicts)


def store(root: Path, entries: dict[str, Entry] | None = None, folder: str = SLUG) -> Store:
    """A store that remembers these entries of the one case."""
    if entries:
        cases = {KEY: CaseBaseline(entries=entries, inputs="bf16")}
        path = root / folder / f"{SUITE}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(render(Baseline(folder, SUITE, {"": STORED}, cases)))
    return Store(root)


def times(*values: float, timer: str = "graph") -> TimedEntry:
    return TimedEntry(sessions=list(values), timer=timer)


def planned(
    where: Store,
    judged: CaseResult,
    fresh: Sequence[CaseResult] = (),
    *,
    stale: Sequence[Verdict] = (),
    hardware: Hardware = GPU,
    provenance: Provenance = NOW,
    paired: Sequence[float] | None = None,
) -> dict[str, Change]:
    scaled = None if paired is None else {TIME: paired} if paired else {}
    changes = plan(lane_of(where, hardware, provenance), [judged], {(SUITE, KEY): fresh}, stale, provenance, scaled)
    return {change.metric: change for change in changes}


def test_a_new_case_is_written_as_the_run_read_it(tmp_path: Path) -> None:
    other = [CaseResult(case=CASE, inputs="bf16", readings=[exact(2)])]
    changes = planned(store(tmp_path), result((timed(60.1), Word.NEW), (exact(2), Word.NEW)), other)
    fields = {"category": "new", "folder": SLUG, "suite": SUITE, "key": KEY, "inputs": "bf16"}
    after = times(60.1)
    assert changes[TIME] == Change(metric=TIME, after=after, unit=Unit.MICROSECONDS, **fields)  # type: ignore[arg-type]
    assert changes[LAUNCHES] == Change(metric=LAUNCHES, after=2, unit=Unit.COUNT, **fields)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())  # planning never writes


@pytest.mark.parametrize("word", [Word.NEW, Word.OTHER_HARDWARE])
def test_a_verdict_on_the_whole_case_is_one_on_each_reading(tmp_path: Path, word: Word) -> None:
    judged = replace(result((timed(60.0), None), (exact(2), None)), verdicts=[Verdict(word)])
    changes = planned(store(tmp_path), judged)
    assert {metric: change.category for metric, change in changes.items()} == {TIME: "new", LAUNCHES: "new"}


@pytest.mark.parametrize(
    ("word", "category", "needs_reason"),
    [
        (Word.BETTER, "faster", False),
        (Word.CHANGED, "changed", True),
        (Word.PASS, None, False),
        (Word.UNRESOLVED, None, False),
        (Word.UNSUPPORTED, None, False),
    ],
)
def test_an_exact_metric_goes_by_its_word(tmp_path: Path, word: Word, category: str | None, needs_reason: bool) -> None:
    changes = planned(store(tmp_path, {LAUNCHES: 1}), result((exact(2), word)))
    assert {metric: change.category for metric, change in changes.items()} == ({LAUNCHES: category} if category else {})
    assert all(change.needs_reason is needs_reason for change in changes.values())
    assert category_of(Verdict(word)) == category


@pytest.mark.parametrize("word", Word)
def test_a_time_goes_by_what_is_stored_and_read_whatever_was_said_of_it(tmp_path: Path, word: Word) -> None:
    def category(before: float | None, **fields: object) -> str | None:
        where = store(tmp_path / str(before), {TIME: times(*[before] * 5)} if before else None)
        change = planned(where, result((timed(60.3, **fields), word))).get(TIME)
        return change.category if change else None

    wrong = word in (Word.WRONG, Word.BROKEN)
    assert category(None) == (None if wrong else "new")
    assert category(50.0) == (None if wrong else "slower")
    assert category(70.0) == (None if wrong else "faster")
    assert category(60.2) == (None if wrong else "new")  # it joins
    assert category(40.0, gated=False) is None
    assert category(41.0, rival=30.0) is None


@pytest.mark.parametrize("lasting", [0.004, 0.02, 0.1, 0.4])
def test_a_level_has_moved_where_it_left_its_noise_and_its_promise(tmp_path: Path, lasting: float) -> None:
    """The more a time scatters, the more it has to move."""
    stored = [60 * (1 + 0.1 * lasting * step) for step in (-2, -1, 0, 1, 2)]
    where = store(tmp_path, {TIME: times(*stored)})
    for by, category in ((0.05, "new"), (1.5, "slower" if lasting > 0.01 else "new")):
        change = planned(where, result((timed(60 * (1 + by * lasting)), Word.PASS)))[TIME]
        assert (change.category, change.adds_session) == (category, category == "new")


@pytest.mark.parametrize(
    ("before", "better", "needs_reason"),
    [
        (70.0, Better.LOWER, False),
        (60.0, Better.LOWER, False),  # within its promise of 3 %
        (50.0, Better.LOWER, True),
        (70.0, Better.HIGHER, True),
        (50.0, Better.HIGHER, False),
    ],
)
@pytest.mark.parametrize(
    "now", [replace(NOW, torch="2.12.0"), replace(NOW, power_limit_watts=600.0)], ids=["toolchain", "power"]
)
def test_under_another_toolchain_or_power_limit_worse_needs_a_reason(
    tmp_path: Path, now: Provenance, before: float, better: Better, needs_reason: bool
) -> None:
    where = store(tmp_path, {TIME: times(*[before] * 5)})
    gpu = replace(GPU, power_limit_watts=now.power_limit_watts)
    judged = result((timed(60.0, better=better), Word.DRIFT))
    change = planned(where, judged, provenance=now, hardware=gpu)[TIME]
    assert (change.category, change.needs_reason, change.together) == ("changed", needs_reason, True)


@pytest.mark.parametrize("other", [{"timer": "wall"}, {"inputs": "fp16"}])
def test_another_timer_or_other_inputs_are_another_measurement(tmp_path: Path, other: dict[str, str]) -> None:
    where = store(tmp_path, {TIME: TimedEntry([50.0] * 5, "graph", anchor=40.0)})
    judged = result((timed(60.0, other.get("timer", "graph")), Word.METHOD_CHANGED), inputs=other.get("inputs", "bf16"))
    change = planned(where, judged)[TIME]
    assert (change.category, change.needs_reason, change.together) == ("changed", False, True)
    assert change.after == times(60.0, timer=other.get("timer", "graph"))


@pytest.mark.parametrize("word", [Word.WRONG, Word.BROKEN])
def test_a_wrong_or_broken_case_is_never_written(tmp_path: Path, word: Word) -> None:
    judged = result((timed(60.0), Word.NEW), (exact(2), Word.NEW))
    wrong = replace(judged, verdicts=[*judged.verdicts, Verdict(word)])
    assert planned(store(tmp_path), wrong) == {}
    assert planned(store(tmp_path), judged, [wrong]) == {}
    inaccurate = replace(judged, accuracy=[Accuracy(output="0", dtype="bfloat16", problem="too far off")])
    assert planned(store(tmp_path), inaccurate) == {}


# -- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "read", "category", "after"),
    [
        ((), 60.123, "new", (60.12,)),
        ((60.0,), 60.1, "new", (60.0, 60.1)),
        ((60.0,), 64.0, "new", (60.0, 64.0)),  # nobody knows its noise yet
        ((60.0,) * 5, 61.7, "new", (60.0,) * 5 + (61.7,)),  # within its promise
        ((60.0,) * 5, 65.0, "slower", (65.0,)),
        ((50.0, 50.1), 60.1, "slower", (60.1,)),  # another level: the old ones go, and that needs a reason
        ((70.0,) * 8, 60.0, "faster", (60.0,)),
        ((1.0, *[60.0] * 7), 60.1, "new", (*[60.0] * 7, 60.1)),  # the last eight are kept
    ],
)
def test_the_sessions_that_are_stored(
    tmp_path: Path, stored: tuple[float, ...], read: float, category: str, after: tuple[float, ...]
) -> None:
    where = store(tmp_path, {TIME: times(*stored)} if stored else None)
    change = planned(where, result((timed(read), Word.UNRESOLVED)))[TIME]
    assert isinstance(change.after, TimedEntry)
    assert (change.category, tuple(change.after.sessions)) == (category, after)
    assert change.needs_reason is (category == "slower")


@pytest.mark.parametrize("provenance", [replace(NOW, torch="2.12.0"), replace(NOW, driver="590.1")])
def test_sessions_under_other_versions_replace_the_old(tmp_path: Path, provenance: Provenance) -> None:
    where = store(tmp_path, {TIME: times(60.0)})
    judged = result((timed(60.1), Word.UNRESOLVED))
    assert planned(where, judged)[TIME].after == times(60.0, 60.1)
    assert planned(where, judged, provenance=provenance)[TIME].after == replace(times(60.1), anchor=60.0)


def test_in_the_tree_of_the_record_whatever_is_read_joins(tmp_path: Path) -> None:
    """Nothing else tells of code that no device runs. A busy machine is no growth."""
    where = store(tmp_path, {TIME: times(60.0, 60.1, 60.2)})
    (joined,) = plan(
        lane_of(where, GPU, NOW), [result((timed(80.0), Word.UNCHANGED))], {}, [], NOW, unedited={(SUITE, KEY)}
    )
    assert (joined.category, joined.needs_reason) == ("new", False)
    assert joined.after == replace(times(60.0, 60.1, 60.2, 80.0), anchor=60.1)
    (moved,) = plan(lane_of(where, GPU, NOW), [result((timed(80.0), Word.UNCHANGED))], {}, [], NOW)
    assert moved.category == "slower"


def test_sessions_do_not_join_where_a_fact_has_moved(tmp_path: Path) -> None:
    """No fingerprint tells of the code, but launches do. A fact that is new tells of nothing."""
    where = store(tmp_path, {TIME: times(60.0), LAUNCHES: 1})
    heavier = planned(where, result((timed(60.1), Word.UNRESOLVED), (exact(2), Word.CHANGED)))
    assert heavier.keys() == {LAUNCHES}
    more = planned(where, result((timed(60.1), Word.UNRESOLVED), (exact(2, "copies"), Word.NEW)))
    assert {metric: change.adds_session for metric, change in more.items()} == {TIME: True, "copies": False}


def test_of_a_report_that_is_accepted_only_what_pairs_judged_replaces_a_record(tmp_path: Path) -> None:
    where = store(tmp_path, {TIME: times(60.0, 60.2, 60.4)})
    judged = result((timed(66.0), Word.SLOWER))
    scaled = planned(where, judged, paired=[66.0, 66.2, 66.4])[TIME]
    assert (scaled.category, scaled.after) == ("slower", times(66.0, 66.2, 66.4))
    assert planned(where, judged, paired=[60.1, 60.3, 60.5]) == {}
    assert planned(where, judged, paired=[]) == {}  # not judged by pairs
    assert planned(where, result((timed(60.1), Word.PASS)), paired=[]) == {}  # nor does it join
    assert planned(store(tmp_path / "none"), judged, paired=[])[TIME].category == "new"


def test_one_wild_session_is_stored_and_not_counted(tmp_path: Path) -> None:
    where = store(tmp_path, {TIME: times(60.1, 95.0, 60.2, 60.3)})
    reading = replace(timed(60.4), promise=0.5)
    change = planned(where, result((reading, Word.PASS)))[TIME]
    values = (60.1, 95.0, 60.2, 60.3, 60.4)
    assert (change.after, change.refused, change.note) == (replace(times(*values), anchor=60.25), "", "")
    assert history_of(values) == history_of([60.1, 60.2, 60.3, 60.4])
    assert within_record(reading, times(*values), UNLEARNT, Controls(), on_its_board=True) == ""


def test_two_modes_of_a_gpu_are_refused_and_those_of_a_cpu_or_host_noted(tmp_path: Path) -> None:
    noisy, modes, of_host = (60, 75, 66, 85, 70), (60, 100, 60, 100, 60), LIMITS[HOST_TIME].promise
    unstable = "unstable: sessions from 60 µs to 100 µs lie more than 50 % apart; free the machine and record again"
    for number, (hardware, promise, values, refused, note) in enumerate((
        (GPU, 0.03, noisy, "", ""), (GPU, 0.03, modes, unstable, ""), (GPU, of_host, modes, "", unstable),
        (CPU, 0.10, modes, "", unstable),
    )):  # fmt: skip
        where = store(tmp_path / str(number), {TIME: times(*values[:4]), CODE: "old"}, hardware.slug)
        judged = result((replace(timed(values[4]), promise=promise), Word.PASS), (code("old"), Word.PASS))
        change = planned(where, judged, hardware=hardware)[TIME]
        assert isinstance(change.after, TimedEntry)
        assert (tuple(change.after.sessions), change.refused, change.note) == (values, refused, note)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_is_refused(tmp_path: Path, value: float) -> None:
    change = planned(store(tmp_path), result((timed(value), Word.NEW)))[TIME]
    assert change.refused == "read no time; measure again"
    assert change.describe()
    assert planned(store(tmp_path, {TIME: times(60.0)}), result((timed(value), Word.UNRESOLVED))) == {}


@pytest.mark.parametrize(
    ("reading", "other", "refused"),
    [
        (exact(2), 3, True),
        (exact(2), 2, False),
        (exact(1000, tolerance=0.01), 1005, False),
        (exact(1000, tolerance=0.01), 1020, True),
        (exact(1000, floor=50.0), 1020, False),
        (exact(["a"]), ["b"], True),
        (exact(["a"], gated=False, stored=True), ["b"], False),
        (exact(float("nan")), 1.0, True),
    ],
)
def test_an_exact_reading_must_be_the_same_in_every_process(
    tmp_path: Path, reading: Reading, other: Value, refused: bool
) -> None:
    fresh = [CaseResult(case=CASE, inputs="bf16", readings=[replace(reading, value=other)])]
    change = planned(store(tmp_path), result((reading, Word.NEW)), fresh)[LAUNCHES]
    assert bool(change.refused) is refused


# -- what belongs together -------------------------------------------------------------------------------------------


def test_what_is_stored_without_a_gate_goes_along_with_what_is_gated(tmp_path: Path) -> None:
    where = store(tmp_path, {LAUNCHES: 1, NAMES: ["a"]})
    names = exact(["a", "b"], NAMES, gated=False, stored=True)
    assert planned(where, result((exact(1), Word.PASS), (names, Word.PASS))) == {}
    changes = planned(where, result((exact(2), Word.CHANGED), (names, Word.PASS)))
    assert (changes[NAMES].category, changes[NAMES].after) == ("changed", ["a", "b"])
    assert changes[NAMES].needs_reason  # it may not go alone where the other is left for want of a reason
    only_shown = [replace(names, stored=False), exact(3, "sm_90.spills", target="sm_90")]
    assert planned(where, result((exact(2), Word.CHANGED), *((each, Word.PASS) for each in only_shown))).keys() == {
        LAUNCHES
    }


def test_other_text_of_the_code_is_recorded_though_nothing_else_moved(tmp_path: Path) -> None:
    where = store(tmp_path, {LAUNCHES: 1, "code": {"rows": "aa"}})
    read = exact({"rows": "bb"}, "code", gated=False, stored=True)
    judged = result((exact(1), Word.PASS))
    for unit, found in ((Unit.TEXT, {"code"}), (Unit.MICROSECONDS, set())):
        verdict = Verdict(Word.PASS, "code", before={"rows": "aa"}, after={"rows": "bb"})
        more = replace(
            judged, readings=[*judged.readings, replace(read, unit=unit)], verdicts=[*judged.verdicts, verdict]
        )
        assert planned(where, more).keys() == found


CODE = "fingerprint"


def code(value: str) -> Reading:
    return exact(value, CODE, gated=False, covers=[TIME], better=Better.SAME)


def judged_code(before: str, after: str, time: float, word: Word, *more: tuple[Reading, Word | None]) -> CaseResult:
    """A case whose code was `before`; its time was judged `word`."""
    judged = result((code(after), Word.PASS), (timed(time), word), *more)
    verdicts = [
        replace(verdict, before=before, after=after) if verdict.metric == CODE else verdict
        for verdict in judged.verdicts
    ]
    return replace(judged, verdicts=verdicts)


def test_other_code_brings_its_own_times(tmp_path: Path) -> None:
    known = store(tmp_path, {CODE: "old", TIME: times(60.0, 60.0, 60.0, 60.0, 60.0)})
    changes = planned(known, judged_code("old", "new", 60.2, Word.PASS))
    assert (changes[CODE].category, changes[CODE].after, changes[CODE].needs_reason) == ("changed", "new", False)
    assert changes[TIME].category == "changed"
    assert changes[TIME].after == replace(times(60.2), anchor=60.0)
    assert select(list(changes.values()), {"changed"}, "")[1] == []


def test_other_code_goes_by_the_name_of_its_times(tmp_path: Path) -> None:
    known = store(tmp_path, {CODE: "old", TIME: times(70.0, 70.0, 70.0, 70.0, 70.0)})
    changes = planned(known, judged_code("old", "new", 60.2, Word.PASS))
    assert {change.category for change in changes.values()} == {"faster"}
    assert {change.metric for change, _ in select(list(changes.values()), {"changed"}, "")[1]} == {CODE, TIME}


@pytest.mark.parametrize("us", [60.2, 66.0])
def test_the_same_code_takes_further_sessions_whatever_they_are(tmp_path: Path, us: float) -> None:
    known = store(tmp_path, {CODE: "old", TIME: times(60.0, 60.0, 60.0)})
    changes = planned(known, judged_code("old", "old", us, Word.PASS))
    assert {metric: (change.category, change.after) for metric, change in changes.items()} == {
        TIME: ("new", replace(times(60.0, 60.0, 60.0, us)))
    }


def test_code_is_not_remembered_without_its_times(tmp_path: Path) -> None:
    known = store(tmp_path, {CODE: "old", LAUNCHES: 1, TIME: times(50.0, 50.0, 50.0, 50.0, 50.0)})
    judged = judged_code("old", "new", 60.2, Word.SLOWER, (exact(2), Word.CHANGED))
    changes = list(planned(known, judged).values())
    chosen, left = select(changes, {"changed"}, "two stages")
    assert [change.metric for change in chosen] == [LAUNCHES]
    assert {change.metric for change, _ in left} == {CODE, TIME}
    without = [replace(change, needs_reason=False) if change.metric == LAUNCHES else change for change in changes]
    why = {change.metric: text for change, text in select(without, CATEGORIES, "")[1]}
    assert why[CODE].startswith(f"goes only with {TIME} of the same case, which is left: +20.4 % over its anchor")


def test_sessions_of_other_code_are_not_added(tmp_path: Path) -> None:
    known = store(tmp_path, {CODE: "old", TIME: times(60.0, 60.0)})
    judged = judged_code("old", "new", 60.2, Word.UNRESOLVED)
    after = planned(known, judged)[TIME].after
    assert isinstance(after, TimedEntry)
    assert after.sessions == [60.2]


def test_portable_readings_go_to_the_target_if_there_is_one(tmp_path: Path) -> None:
    judged = result((timed(60.0), Word.NEW), (exact(2, portable=True), Word.NEW))
    for hardware, folder in ((GPU, SLUG), (CPU, "cpu")):
        changes = planned(store(tmp_path), judged, hardware=hardware)
        assert (changes[TIME].folder, changes[LAUNCHES].folder) == (hardware.slug, folder)


def test_a_gone_case_leaves_hardware_and_target(tmp_path: Path) -> None:
    store(tmp_path, {LAUNCHES: 1}, "cpu")
    where = store(tmp_path, {TIME: times(60.0)}, "cpu-x")
    judged = result((exact(2), Word.PASS))
    gone = Verdict(Word.STALE, suite=SUITE, case=KEY, reason="the case is gone")
    changes = plan(lane_of(where, CPU, NOW), [judged], {}, [gone], NOW)
    assert [(change.category, change.folder, change.after) for change in changes] == [
        ("stale", "cpu", None),
        ("stale", "cpu-x", None),
    ]
    assert changes[1].describe() == f"stale: cpu-x fp8 {KEY}: removed; the case is gone"


# -- what is chosen --------------------------------------------------------------------------------------------------


def change(category: str, metric: str = LAUNCHES, **fields: object) -> Change:
    return Change(category=category, folder=SLUG, suite=SUITE, key=KEY, metric=metric, after=2, **fields)  # type: ignore[arg-type]


def test_select_says_why_a_change_is_left() -> None:
    new, slower, refused = change("new"), change("slower", needs_reason=True), change("new", refused="unstable: …")
    assert select([new, slower, refused], CATEGORIES, "") == (
        [new],
        [(slower, "slower, heavier or different; say why with --perfguard-reason"), (refused, "unstable: …")],
    )
    assert select([new, slower], CATEGORIES, "#412") == ([new, slower], [])
    assert select([new, slower], ["slower"], "#412") == (
        [slower],
        [(new, "not asked for; add it with --perfguard-update=new")],
    )
    assert select([slower], CATEGORIES, "  ")[0] == []


def test_values_of_two_toolchains_never_stand_side_by_side() -> None:
    drifted, launches = change("changed", TIME, together=True, needs_reason=True), change("faster")
    chosen, left = select([drifted, launches], CATEGORIES, "")
    assert chosen == []
    assert left[1][1] == (
        f"goes only with {TIME} of the same case, which is left: "
        "slower, heavier or different; say why with --perfguard-reason"
    )
    elsewhere = Change(category="faster", folder="cpu", suite=SUITE, key=KEY, metric="breaks", after=0)
    assert select([drifted, launches, elsewhere], CATEGORIES, "")[0] == [elsewhere]
    assert select([drifted, launches], CATEGORIES, "torch 2.12")[0] == [drifted, launches]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"before": times(61), "after": times(66, 67.1, 68), "unit": Unit.MICROSECONDS}, "61 µs -> 67.1 µs (+10.0 %)"),
        ({"after": times(61.2), "unit": Unit.MICROSECONDS, "note": "1 of 5"}, "61.2 µs; 1 of 5"),
        ({"before": 2**20, "after": 2**21, "unit": Unit.BYTES}, "1 MiB -> 2 MiB (+100.0 %)"),
        ({"before": 0, "after": 1, "unit": Unit.COUNT}, "0 -> 1"),
        ({"before": ["a"], "after": ["a", "b", "b"]}, "+ b x2"),
        ({"before": ["a"], "after": ["a", "x" * 200]}, f"+ {'x' * 117}…"),
        ({"before": "a\nb", "after": "x" * 80}, f"a b -> {'x' * 59}…"),
        ({"before": 1}, "removed"),
    ],
)  # fmt: skip
def test_a_change_in_one_line(fields: dict[str, object], text: str) -> None:
    shown = Change(category="slower", folder=SLUG, suite=SUITE, key=KEY, metric="m", **fields)  # type: ignore[arg-type]
    assert shown.describe() == f"slower: {SLUG} fp8 {KEY} m: {text}"


def test_a_machine_s_own_exact_metrics_go_along_with_its_first_time(tmp_path: Path) -> None:
    """They are not gated while it has no record of its own; recording it makes one."""
    own = exact(3, metric="peak")
    judged = result((timed(60.0), Word.NEW), (own, Word.PASS))
    assert {metric: change.category for metric, change in planned(store(tmp_path), judged).items()} == {
        TIME: "new", "peak": "new",
    }  # fmt: skip
    known = result((timed(60.0), Word.NEW), (own, Word.PASS))
    assert set(planned(store(tmp_path, {"peak": 3}), known)) == {TIME}


def test_long_values_that_begin_alike_are_shown_from_where_they_differ() -> None:
    alike = "; ".join(f"bfloat16[{n},64] strides (64,1)" for n in range(4))
    assert show_apart(f"{alike}; shares x", f"{alike}; shares y", Unit.TEXT) == ("…x", "…y")
    assert show_apart("as short", "as long", Unit.TEXT) == ("as short", "as long")
    assert show_apart(3, 2048, Unit.BYTES) == ("3 B", "2 KiB")
