"""The ladder of a timed reading: every word, each with its reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge import Common, Family, Recording, judge_timed
from perfguard.judge.statistics import Prior
from perfguard.records import Better, Reading, TimedEntry, Verdict, Word
from perfguard.units import Unit

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]  # σ about 0.13 %: MDE 1.5 %
FAMILY = Family(size=200, prior=Prior(8.0, 0.002))


def judged(
    value: float, fresh: list[float] | None = None, sessions: list[float] | None = None, **options: Any
) -> Verdict:
    names = ("drift", "fresh_problem", "common", "fresh_common")
    rest = {name: options.pop(name) for name in names if name in options}
    family = options.pop("family", FAMILY)
    reading = Reading(metric="span", unit=Unit.MICROSECONDS, value=value, timer="clock", **options)
    return judge_timed(reading, TimedEntry(sessions or QUIET, "clock"), family, fresh or [], **rest)


def test_the_same_time_passes_and_says_what_it_could_have_seen() -> None:
    verdict = judged(100.3)
    assert verdict.word is Word.PASS
    assert verdict.smallest is not None
    assert 0.01 < verdict.smallest < 0.02
    assert verdict.ratio == pytest.approx(1.003)
    assert (verdict.before, verdict.after) == (pytest.approx(100.0), 100.3)


@pytest.mark.parametrize("value", [105.0, 95.0])
def test_one_session_only_suspects(value: float) -> None:
    assert judged(value).word is Word.SUSPECT


def test_below_the_least_effect_nothing_is_suspected() -> None:
    very_quiet = [100.0, 100.0, 100.01, 100.0, 99.99, 100.0, 100.0, 100.0]
    family = Family(size=1, prior=Prior(8.0, 0.0005))
    assert judged(100.95, sessions=very_quiet, family=family).word is Word.PASS
    assert judged(101.1, sessions=very_quiet, family=family).word is Word.SUSPECT


def test_the_floor_of_a_reading_shields_it() -> None:
    assert judged(105.0, floor=1.0).word is Word.SUSPECT
    assert judged(105.0, floor=6.0).word is not Word.SUSPECT


def test_fresh_processes_that_agree_accuse_with_their_own_effect() -> None:
    verdict = judged(109.0, [105.0, 105.2, 104.9])
    assert verdict.word is Word.SLOWER
    assert verdict.ratio == pytest.approx((105.0 * 105.2 * 104.9) ** (1 / 3) / 100.0)
    assert verdict.after == pytest.approx(105.03, abs=0.01)
    assert "3 fresh processes (95 % interval +4." in verdict.reason


def test_interval_is_the_formulas() -> None:
    # K = 8, R = 3, d0 + K - 1 + R - 1 = 17: t(0.975) = 2.1098; three fresh sessions alike add no squares
    logs = [math.log(value) for value in QUIET]
    mean = sum(logs) / 8
    variance = sum((y - mean) ** 2 for y in logs) / 7
    sigma = math.sqrt((8 * 0.002**2 + 7 * variance) / 17)
    margin = 2.1098 * sigma * math.sqrt(1 / 3 + 1.57 / 8)
    low, high = 100 * (math.exp(math.log(1.05) - margin) - 1), 100 * (math.exp(math.log(1.05) + margin) - 1)
    assert f"(95 % interval {low:+.1f} % to {high:+.1f} %)" in judged(105.0, [105.0] * 3).reason


@pytest.mark.parametrize(("value", "odd"), [(105.0, 100.4), (95.0, 99.6)])
def test_one_block_that_did_not_move_keeps_a_reading_from_suspicion(value: float, odd: float) -> None:
    assert judged(value, blocks=[value, value, odd]).word is Word.PASS  # θ/2 is 0.5 %
    assert judged(value, blocks=[value, value, 100 + 0.2 * (value - 100)]).word is Word.SUSPECT


def test_an_odd_block_on_the_far_side_does_not_matter() -> None:
    assert judged(105.0, blocks=[104.9, 105.0, 150.0]).word is Word.SUSPECT


@pytest.mark.parametrize(("value", "rejected", "word"), [(130.0, 2, Word.SUSPECT), (130.0, 3, Word.UNRESOLVED)])
def test_a_disturbed_device_judges_nothing(value: float, rejected: int, word: Word) -> None:
    verdict = judged(value, rejected_blocks=rejected)
    assert verdict.word is word
    assert verdict.reason.startswith("ENV: 3 blocks rejected") == (word is Word.UNRESOLVED)
    assert judged(100.0, rejected_blocks=3).word is Word.UNRESOLVED


def shifted(shift: float, *, removed: bool = True, error: float = 0.0005, usual: float = 0.02) -> Common:
    recording = Recording((0.0,) * 8, 0.5 if removed else 0.0, FAMILY.prior)
    return Common(shift, error, usual, 20, recording)


def test_a_common_shift_is_removed() -> None:
    machine = shifted(math.log(1.015))
    assert judged(101.5).word is Word.SUSPECT
    verdict = judged(101.5, common=machine)
    assert (verdict.word, verdict.ratio) == (Word.PASS, pytest.approx(1.0))
    assert judged(100.0, common=machine).word is Word.SUSPECT  # it should have moved with the others: faster now
    assert judged(103.0, common=machine).word is Word.SUSPECT


def test_a_common_shift_that_does_not_pay_stays() -> None:
    verdict = judged(101.5, common=shifted(math.log(1.015), removed=False))
    assert (verdict.word, verdict.ratio) == (Word.SUSPECT, pytest.approx(1.015))


def test_fresh_sessions_are_judged_without_their_own_shifts() -> None:
    fresh, machine = [103.0, 105.0, 104.0], [shifted(math.log(x)) for x in (0.99, 1.01, 1.0)]
    verdict = judged(104.0, fresh, fresh_common=machine)
    assert verdict.word is Word.SLOWER
    assert verdict.ratio == pytest.approx((1.03 * 1.05 * 1.04 / (0.99 * 1.01)) ** (1 / 3))
    assert "other cases" not in verdict.reason  # the shifts cancel
    one_way = judged(104.0, [104.0] * 3, fresh_common=[shifted(math.log(1.01))] * 3)
    assert one_way.ratio == pytest.approx(1.04 / 1.01)
    assert "without the +1.0 % of the other cases" in one_way.reason


def test_one_unknown_shift_leaves_all_in() -> None:
    machine = [shifted(math.log(1.01)), shifted(math.log(1.01)), None]
    assert judged(104.0, [104.0] * 3, fresh_common=machine).ratio == pytest.approx(1.04)


def test_what_the_controls_leave_uncertain_widens_what_can_be_seen() -> None:
    sure, unsure = (judged(100.0, common=shifted(0.0, error=error)).smallest for error in (0.0001, 0.005))
    assert sure is not None
    assert unsure is not None
    assert unsure > 1.5 * sure


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(
    ("value", "word"), [(108.0, Word.UNRESOLVED), (100.0, Word.UNRESOLVED), (130.0, Word.UNRESOLVED)]
)
def test_an_alarmed_session_accuses_nobody_and_hides_nothing(value: float, word: Word, removed: bool) -> None:
    verdict = judged(value, [value] * 3, common=shifted(math.log(1.08), removed=removed))
    assert verdict.word is word
    assert verdict.reason.startswith("ENV: 20 cases of this timer moved together by +8.0 %")


def test_an_alarmed_session_acquits_who_is_no_suspect_either_way() -> None:
    assert judged(100.4, common=shifted(math.log(1.008), usual=0.005)).word is Word.PASS


def test_an_alarmed_fresh_session_confirms_nothing() -> None:
    machine = [shifted(0.0), shifted(0.0), shifted(0.05)]
    verdict = judged(105.0, [105.0, 105.0, 110.0], fresh_common=machine)
    assert (verdict.word, verdict.reason[:4]) == (Word.UNRESOLVED, "ENV:")


def test_faster_is_confirmed_too() -> None:
    verdict = judged(92.0, [95.0, 95.1, 94.9])
    assert verdict.word is Word.FASTER
    assert verdict.ratio == pytest.approx(0.95, abs=1e-3)


def test_higher_is_better_turns_the_sign() -> None:
    assert judged(95.0, [95.0] * 3, better=Better.HIGHER).word is Word.SLOWER
    verdict = judged(105.0, [105.0] * 3, better=Better.HIGHER)
    assert verdict.word is Word.FASTER
    assert verdict.ratio == pytest.approx(1 / 1.05)


def test_not_confirmed_passes_when_a_slowdown_as_promised_is_excluded() -> None:
    verdict = judged(109.0, [100.1, 99.9, 100.2])
    assert verdict.word is Word.PASS
    assert verdict.reason.startswith("not confirmed: +9.0 % in one session")
    assert judged(92.0, [100.1, 99.9, 100.2]).word is Word.PASS


def test_fresh_processes_that_disagree_are_a_conflict() -> None:
    verdict = judged(109.0, [100.2, 109.0, 109.0])  # the mean is far beyond θ, one session is not
    assert verdict.word is Word.UNRESOLVED
    assert verdict.reason.startswith("CONFLICT: +9.0 % in one session, +0.2 %, +9.0 %, +9.0 %")


def test_a_sure_effect_below_the_least_one_is_no_slowdown() -> None:
    very_quiet = [100.0, 100.0, 100.01, 100.0, 99.99, 100.0, 100.0, 100.0]
    family = Family(size=1, prior=Prior(8.0, 0.0005))
    assert judged(102.0, [100.8] * 3, very_quiet, family=family).word is Word.PASS
    assert judged(102.0, [101.2] * 3, very_quiet, family=family).word is Word.SLOWER


def test_fresh_processes_cannot_accuse_in_the_other_direction() -> None:
    verdict = judged(92.0, [109.0, 109.0, 109.0])
    assert (verdict.word, verdict.reason[:8]) == (Word.UNRESOLVED, "CONFLICT")


def test_the_bound_shrinks_with_the_family() -> None:
    noisy = [100.0, 101.0, 99.0, 100.5, 99.5, 100.8, 99.2, 100.0]
    fresh = [103.0, 103.0, 103.0]
    small, large = Family(1, Prior(4.0, 0.007)), Family(10_000, Prior(4.0, 0.007))
    assert judged(103.0, fresh, noisy, family=small).word is Word.SLOWER
    assert judged(103.0, fresh, noisy, family=large).word is Word.UNRESOLVED


def test_noise_is_no_pass() -> None:
    noisy = [100.0, 103.0, 97.0, 102.0, 98.0, 101.0, 99.0, 100.0]
    verdict = judged(100.0, sessions=noisy)
    assert verdict.word is Word.UNRESOLVED
    assert verdict.smallest is not None
    assert verdict.smallest > 0.03
    assert verdict.reason.startswith(f"NOISY: could have seen a change of {100 * verdict.smallest:.1f} %")


def test_noise_does_not_hide_what_towers_above_it() -> None:
    noisy = [100.0, 103.0, 97.0, 102.0, 98.0, 101.0, 99.0, 100.0]
    assert judged(200.0, [200.0, 202.0, 198.0], sessions=noisy).word is Word.SLOWER


@pytest.mark.parametrize("value", [100.0, 300.0])
def test_few_sessions_judge_nothing_but_tell_what_they_saw(value: float) -> None:
    verdict = judged(value, [value] * 3, sessions=QUIET[:4])
    assert verdict.word is Word.UNRESOLVED
    assert verdict.reason.startswith("FEW: 4 sessions stored")
    assert verdict.reason.endswith("pytest --perfguard --perfguard-update=new")
    assert ("+199.9 %" in verdict.reason) == (value == 300.0)
    assert verdict.ratio == pytest.approx(value / 100, rel=1e-3)
    assert verdict.smallest is None


def test_one_wild_stored_session_does_not_unguard_the_case() -> None:
    sessions = [*QUIET, 4.4]
    assert judged(100.1, sessions=sessions).word is Word.PASS
    assert judged(105.0, [105.0] * 3, sessions=sessions).word is Word.SLOWER


def test_without_fresh_processes_nobody_is_accused() -> None:
    verdict = judged(150.0, fresh_problem="the time budget is spent")
    assert verdict.word is Word.UNRESOLVED
    assert verdict.reason == "UNCONFIRMED: +50.0 % in one session; the time budget is spent"
    assert judged(150.0, [150.0, 150.0]).reason.endswith("2 of 3 fresh processes read it")
    assert judged(150.0, [150.0] * 3, fresh_problem="two of five died").word is Word.SLOWER


def test_another_toolchain_is_shown_and_not_gated() -> None:
    verdict = judged(120.0, [120.0] * 3, drift=["driver 580 -> 590"])
    assert verdict.word is Word.DRIFT
    assert verdict.ratio == pytest.approx(1.2)
    assert verdict.reason == "+20.0 %; another toolchain: driver 580 -> 590"


def test_what_is_not_gated_passes() -> None:
    verdict = judged(300.0, gated=False)
    assert (verdict.word, verdict.reason) == (Word.PASS, "not gated: +200.0 %")


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_time_is_unresolved(value: float) -> None:
    assert judged(value).word is Word.UNRESOLVED


@given(
    scale=st.floats(1e-2, 1e6),
    value=st.floats(80, 130),
    fresh=st.lists(st.floats(80, 130), min_size=3, max_size=3),
)
def test_the_unit_of_time_does_not_matter(scale: float, value: float, fresh: list[float]) -> None:
    once = judged(value, fresh)
    scaled = judged(value * scale, [y * scale for y in fresh], [y * scale for y in QUIET])
    assert once.ratio == pytest.approx(scaled.ratio)
    if not _on_an_edge(value, fresh):
        assert once.word == scaled.word


def _on_an_edge(value: float, fresh: list[float]) -> bool:
    """Whether rounding may decide; effects are compared with thresholds."""
    near = {judged(value * k, [y * k for y in fresh]).word for k in (1 - 1e-9, 1.0, 1 + 1e-9)}
    return len(near) > 1


@given(st.floats(1.0, 3.0), st.lists(st.floats(0.5, 3.0), min_size=3, max_size=3))
def test_slower_only_when_every_fresh_process_is_slower(value: float, fresh: list[float]) -> None:
    verdict = judged(100 * value, [100 * y for y in fresh])
    if verdict.word is Word.SLOWER:
        assert min(fresh) > 1.005
    if min(fresh) > 1.1 and value > 1.1 and max(fresh) < 1.1 * min(fresh):
        assert verdict.word is Word.SLOWER
