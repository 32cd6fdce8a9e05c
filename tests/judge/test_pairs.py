"""Process pairs: asked after every one, they accuse what is certain, acquit what is the same, and never contradict
their own interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfguard.judge.lane import Lane
from perfguard.judge.pair_test import (
    LEAST_PAIRS,
    MOST_PAIRS,
    RIVAL_PROCESSES,
    PairedReadings,
    PairVerdict,
    contrast,
    in_cycles,
    in_states,
    is_slower_than_rival,
    judge_paired,
    judge_pairs,
    judge_rival,
    luck,
)
from perfguard.judge.run_verdicts import judge_session
from perfguard.judge.statistics import UNLEARNT, Prior, spread_of, trimmed
from perfguard.model.records import (
    TOO_NOISY,
    Case,
    CaseResult,
    Hardware,
    PairReading,
    Reading,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.records.change import category_of
from perfguard.model.units import Unit

THETA, CASES = 0.01, 200
PRIOR = Prior(8.0, 0.003)


def judged(
    slowdowns: Sequence[float],
    controls: Sequence[float] = (),
    *,
    theta: float = THETA,
    family: int = CASES,
    prior: Prior = PRIOR,
    **options: Any,
) -> PairVerdict:
    history = spread_of(slowdowns, controls)
    return judge_pairs(history, len(slowdowns), theta=theta, family=family, prior=prior, **options)


def readings(slowdowns: Sequence[float], **clocks: float) -> list[PairReading]:
    return [PairReading(pair, each, 0.0, 50.0, 50.0, **clocks) for pair, each in enumerate(slowdowns, 1)]


@pytest.mark.parametrize(
    ("slowdowns", "prior", "word"),
    [
        ([0.0], PRIOR, None),
        ([0.0005, -0.0005], PRIOR, Word.PASS),  # equal trees take two pairs
        # one pair of a noise that nobody knows decides nothing
        ([0.0], UNLEARNT, None),
        ([0.2], UNLEARNT, None),
        # θ decides where the noise is small
        ([0.0099] * 6, Prior(8.0, 1e-4), Word.PASS),
        ([0.0101] * 6, Prior(8.0, 1e-4), Word.SLOWER),
    ],
)
def test_words(slowdowns: list[float], prior: Prior, word: Word | None) -> None:
    verdict = judged(slowdowns, prior=prior)
    assert (verdict.word, verdict.pairs) == (word, len(slowdowns))


def test_a_clear_slowdown_takes_three_pairs() -> None:
    assert judged([0.05, 0.051]).word is None
    verdict = judged([0.05, 0.051, 0.049])
    assert (verdict.word, verdict.pairs) == (Word.SLOWER, 3)
    assert verdict.effect == pytest.approx(0.05)
    assert str(verdict) == "in 3 process pairs"
    assert judged([-0.05, -0.051, -0.049]).word is Word.FASTER


def test_the_base_and_its_copy_are_two_estimates_of_one_level() -> None:
    reading = PairReading(1, change=0.03, control=0.02, base_us=50.0, work_us=51.5)
    assert contrast(reading) == pytest.approx(0.02)  # ln W - (ln B + ln B')/2
    random = np.random.default_rng(1)
    base, copy, work = random.standard_normal((3, 20_000))
    drawn = [contrast(PairReading(1, *each, 50.0, 50.0)) for each in zip(work - base, copy - base, strict=True)]
    assert np.var(drawn) == pytest.approx(1.5, rel=0.05)


def test_interval_is_the_formula_s() -> None:
    # n = 3: squares 2e-6 on 2 degrees, d0 = 8: 10 degrees, t(0.975) = 2.2281
    verdict = judged([0.020, 0.021, 0.019])
    sigma = math.sqrt((8 * 0.003**2 + 2e-6) / 10)
    assert verdict.interval[1] - verdict.effect == pytest.approx(2.2281 * sigma / math.sqrt(3), rel=1e-4)


def test_errors_are_spent_over_looks_and_family() -> None:
    # n = 3 of 16, family 1: half of 1 % over 13 looks is 0.000385; t(10 degrees) = 4.7495 of sigma/sqrt(3) is beyond θ.
    sigma = math.sqrt((8 * 0.003**2 + 2e-6) / 10)
    limit = 4.7495 * sigma / math.sqrt(3) * 10  # ten times the noise, so that θ does not decide
    wide = Prior(8.0, 0.03)
    scatter = [0.0, 0.01, -0.01]
    assert judged([limit * 1.02 + each for each in scatter], family=1, prior=wide).word is Word.SLOWER
    assert judged([limit * 0.98 + each for each in scatter], family=1, prior=wide).word is None
    assert judged([limit * 1.02 + each for each in scatter], family=2, prior=wide).word is None


def test_the_last_look_may_err_as_often_as_all_before_it() -> None:
    scatter = [0.0205 + 0.03 * (-1) ** pair for pair in range(MOST_PAIRS)]
    before, last = judged(scatter[:-1]), judged(scatter)
    assert (before.word, last.word) == (None, Word.UNRESOLVED)
    assert before.smallest is not None
    assert last.smallest is not None
    assert last.smallest < 0.9 * before.smallest


def test_neither_is_unresolved_in_the_end_with_what_it_would_have_seen() -> None:
    undecided = [0.04, -0.03, 0.05, -0.02] * 4
    assert judged(undecided[:-1]).word is None
    verdict = judged(undecided)
    assert (verdict.word, verdict.pairs) == (Word.UNRESOLVED, MOST_PAIRS)
    assert verdict.smallest is not None


def test_a_large_effect_is_certain_whatever_the_noise() -> None:
    """Seen on a quiet two-core machine: +28 % with a standard error of 4.9 % over 12 pairs."""
    scatter = stats.norm.ppf((np.arange(12) + 0.5) / 12)
    slowdowns = (math.log(1.28) + 0.049 * math.sqrt(12) * scatter / np.std(scatter, ddof=1)).tolist()
    assert np.std(slowdowns, ddof=1) / math.sqrt(12) == pytest.approx(0.049)
    controls = (0.19 * scatter[[7, 2, 9, 4, 0, 11, 6, 1, 8, 3, 10, 5]]).tolist()
    assert judged(slowdowns, controls, family=1, prior=UNLEARNT).word is Word.SLOWER
    assert judged(slowdowns, controls, family=1, prior=UNLEARNT, most_pairs=12).word is Word.SLOWER


# -- what two states of a process would otherwise pass for -----------------------------------------------------------


def test_luck_is_what_states_do_at_most() -> None:
    """Drawn: a time in two states, of which one process in three is in the slow one, looks slower in all pairs."""
    random = np.random.default_rng(5)
    base, copy, work = random.random((3, 400_000, 3)) < 1 / 3
    slower = work & ~base & ~copy
    assert np.all(slower, axis=1).mean() == pytest.approx(luck(3), rel=0.05)
    assert [trimmed(pairs) for pairs in (7, 8, 10, 16)] == [0, 1, 2, 3]
    assert luck(8) == pytest.approx(8 * luck(7))  # one of eight may disagree


@pytest.mark.parametrize(("undecided", "pairs"), [(1, 3), (10, 4), (11, 5), (70, 5), (71, 6)])
def test_the_more_are_undecided_the_more_pairs_must_agree(undecided: int, pairs: int) -> None:
    for count in range(LEAST_PAIRS, 7):
        verdict = judged([0.25] * count, undecided=undecided)
        assert (verdict.word is Word.SLOWER) is (count >= pairs)


def test_a_slowdown_by_a_state_of_the_base_is_seen_in_the_control() -> None:
    """The slowdowns agree, since the base and its copy lie in other states by turns."""
    slowdowns, controls = [0.025] * 4, [0.05, -0.05, 0.05, -0.05]
    assert judged(slowdowns).word is Word.SLOWER
    assert judged(slowdowns, controls).word is None


def test_a_quiet_control_adds_its_degrees_and_no_noise() -> None:
    scatter = [0.030, 0.034, 0.028, 0.033]
    alone, beside = judged(scatter, prior=UNLEARNT), judged(scatter, [0.003, -0.002, 0.004, -0.003], prior=UNLEARNT)
    assert (alone.word, beside.word) == (None, Word.SLOWER)
    quiet = judged(scatter, [1e-5, -1e-5, 1e-5, 1e-5], prior=UNLEARNT)  # a noise that the working tree has alone
    assert quiet.interval == alone.interval


def test_a_case_that_the_prior_cannot_explain_stands_alone() -> None:
    wide = [0.05, 0.09, 0.01, 0.05]
    assert judged(wide, prior=Prior(8.0, 0.02)).interval != judged(wide, prior=Prior(0.0, 0.02)).interval
    assert judged(wide, prior=Prior(8.0, 0.002)).interval == judged(wide, prior=Prior(8.0, 0.001)).interval


def test_wild_pairs_are_cut_at_either_end() -> None:
    quiet = [0.031, 0.029, 0.030, 0.032, 0.028, 0.030, 0.031, 0.029]
    for wild in (0.3, -0.3):
        verdict = judged([*quiet, 0.030, wild])
        assert verdict.word is Word.SLOWER
        assert verdict.effect == pytest.approx(0.030, abs=0.001)
    assert judged([*quiet[:6], 0.3]).word is None  # of seven nobody is left out


def test_unresolved_says_how_many_pairs_would_settle_it() -> None:
    undecided = [0.04, -0.03, 0.05, -0.02] * 4
    verdict = judged(undecided)
    assert verdict.settling is not None
    assert verdict.settling > MOST_PAIRS
    assert str(verdict) == f"in 16 process pairs, about {verdict.settling} would settle it"
    assert judged(undecided[:-1]).settling is None
    wider = judged([2 * each for each in undecided]).settling
    assert wider is not None
    assert wider > verdict.settling


STATES = (
    [0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0],
    [1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0],
    [0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1],
)


def in_turns(base: Sequence[int], copy: Sequence[int], work: Sequence[int], apart: float = 0.05) -> list[PairReading]:
    """Processes in states, with a little noise, all of a pair with a share that they have in common."""
    noise = np.random.default_rng(2).normal(0, 0.001, (3, len(base)))
    b, c, w = (apart * np.array(states) + each for states, each in zip((base, copy, work), noise, strict=True))
    return [PairReading(pair, *values, 50.0, 50.0) for pair, values in enumerate(zip(w - b, c - b, strict=True), 1)]


def test_two_states_are_named_with_their_distance_and_trees() -> None:
    still = [0] * 12
    assert in_states(in_turns(*STATES), 0.0, THETA) == "two states 5.2 % apart, in both trees"
    assert in_states(in_turns(STATES[0], STATES[1], still), 0.0, THETA) == "two states 5.2 % apart, at the base"
    assert in_states(in_turns(still, still, STATES[2]), 0.0, THETA) == "two states 5.1 % apart, in the working tree"
    assert in_states(in_turns(*STATES, apart=0.005), 0.0, THETA) == ""  # less than θ
    assert in_states(in_turns(*STATES)[:3], 0.0, THETA) == ""  # too few to tell
    assert in_states(readings([0.0] * 8), 0.0, THETA) == ""


def test_noise_of_one_kind_has_no_states() -> None:
    random = np.random.default_rng(11)
    drawn = random.normal(0, 0.02, (200, MOST_PAIRS, 3))
    named = 0
    for each in drawn:
        pairs = [PairReading(at, w - b, c - b, 50.0, 50.0) for at, (b, c, w) in enumerate(each.tolist(), 1)]
        named += bool(in_states(pairs, float(np.mean([contrast(pair) for pair in pairs])), THETA))
    assert named <= 10  # of 200


@pytest.mark.parametrize(
    ("work_mhz", "effect", "told"),
    [
        (1755.0, 0.04, ""),
        (1687.5, math.log(1.04), "in cycles +0.0 %, clock 1755 -> 1688 MHz"),  # power: slower at equal cycles
        (1745.0, 0.04, ""),  # by less than θ
        (1780.0, -0.008, "in cycles +0.6 %, clock 1755 -> 1780 MHz"),  # faster by its clock alone
        (1690.0, 0.0, "in cycles -3.7 %, clock 1755 -> 1690 MHz"),
    ],
)
def test_raw_time_judges_and_cycles_are_said_where_they_disagree(work_mhz: float, effect: float, told: str) -> None:
    pairs = readings([effect] * 4, base_mhz=1755.0, work_mhz=work_mhz)
    assert in_cycles(pairs, effect, THETA) == told
    assert in_cycles(readings([effect] * 4), effect, THETA) == ""  # nobody told the clock


# -- no verdict contradicts itself -----------------------------------------------------------------------------------

EFFECTS = st.floats(-0.5, 0.5)
THETAS = st.floats(0.001, 0.3)
FAMILIES = st.integers(1, 10_000)
PRIORS = st.builds(Prior, st.floats(1.0, 8.0), st.floats(1e-5, 0.1), st.booleans())
SCATTERS = st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=MOST_PAIRS)


@given(EFFECTS, st.sampled_from([1e-4, 0.02, 0.2, 1.0]), SCATTERS, THETAS, FAMILIES, PRIORS)
def test_no_verdict_contradicts_its_own_interval_or_limit(
    effect: float, width: float, scatter: list[float], theta: float, family: int, prior: Prior
) -> None:
    slowdowns = [effect + width * each for each in scatter]
    verdict = judged(slowdowns, theta=theta, family=family, prior=prior)
    low, high = verdict.interval
    seen = math.inf if verdict.smallest is None else math.log1p(verdict.smallest)
    assert low < verdict.effect < high
    match verdict.word:
        case Word.SLOWER:
            assert low > 0
            assert verdict.effect > theta
        case Word.FASTER:
            assert high < 0
            assert verdict.effect < -theta
        case Word.PASS:
            assert abs(verdict.effect) <= theta
            assert seen <= 2 * theta
            assert -seen < low < high < seen
        case Word.UNRESOLVED:
            assert verdict.pairs == MOST_PAIRS
            assert abs(verdict.effect) < seen
        case _:
            assert verdict.pairs < MOST_PAIRS
            assert abs(verdict.effect) < seen


@given(st.lists(EFFECTS, min_size=1, max_size=MOST_PAIRS), THETAS, FAMILIES, PRIORS)
def test_turning_the_sides_turns_the_word(slowdowns: list[float], theta: float, family: int, prior: Prior) -> None:
    one = judged(slowdowns, theta=theta, family=family, prior=prior)
    other = judged([-each for each in slowdowns], theta=theta, family=family, prior=prior)
    turned = {Word.SLOWER: Word.FASTER, Word.FASTER: Word.SLOWER, Word.PASS: Word.PASS}
    assert other.word is (turned.get(one.word, one.word) if one.word else None)
    assert other.effect == pytest.approx(-one.effect)
    assert other.smallest == one.smallest or other.smallest == pytest.approx(one.smallest)


def pairs_until_slower(slowdowns: Sequence[float], theta: float, family: int, prior: Prior) -> int:
    looks = range(LEAST_PAIRS, len(slowdowns) + 1)
    found = (judged(slowdowns[:look], theta=theta, family=family, prior=prior).word for look in looks)
    return next((look for look, word in zip(looks, found, strict=True) if word is Word.SLOWER), MOST_PAIRS + 1)


@given(
    st.lists(st.floats(-0.05, 0.05), min_size=LEAST_PAIRS, max_size=MOST_PAIRS), st.floats(0.001, 0.3),
    st.floats(0.001, 0.3), THETAS, FAMILIES, PRIORS,
)  # fmt: skip
def test_a_larger_effect_with_the_same_scatter_never_needs_more_pairs(
    scatter: list[float], small: float, more: float, theta: float, family: int, prior: Prior
) -> None:
    before = pairs_until_slower([small + each for each in scatter], theta, family, prior)
    after = pairs_until_slower([small + more + each for each in scatter], theta, family, prior)
    assert after <= before


@st.composite
def all_tracks(draw: st.DrawFn) -> dict[str, PairedReadings]:
    tracks = {}
    for number in range(draw(st.integers(1, 20))):
        level, width = draw(st.sampled_from([0.0, 0.02, 0.3])), draw(st.sampled_from([0.001, 0.01, 0.1]))
        scatter = draw(st.lists(st.floats(-1.0, 1.0), max_size=6))
        taken = readings([level + width * each for each in scatter])
        lost = draw(st.sets(st.integers(1, 6), max_size=1))
        kept = [each for each in taken if each.pair not in lost]
        tracks[f"case{number}"] = PairedReadings(THETA, draw(st.sampled_from(["clock", "sundial"])), kept)
    return tracks


@given(all_tracks(), st.integers(1, 6))
def test_whoever_judges_again_says_word_for_word_what_was_said(tracks: dict[str, PairedReadings], look: int) -> None:
    first = {
        name: PairedReadings(track.theta, track.timer_class, [each for each in track.readings if each.pair <= look])
        for name, track in tracks.items()
    }
    then = {name: found for name, found in judge_paired(first, CASES).items() if found.word is not None}
    now = judge_paired(tracks, CASES)
    assert {name: now[name] for name in then} == then
    assert set(now) == {name for name, track in tracks.items() if track.readings}


@given(all_tracks())
def test_one_call_with_all_pairs_says_what_asking_after_each_said(tracks: dict[str, PairedReadings]) -> None:
    """As the engine asks: one more pair for what is undecided."""
    asked = {name: PairedReadings(track.theta, track.timer_class, []) for name, track in tracks.items()}
    found: dict[str, PairVerdict] = {}
    for pair in range(1, 7):
        for name, track in tracks.items():
            more = [each for each in track.readings if each.pair == pair]
            if name not in found or found[name].word is None:
                asked[name] = PairedReadings(track.theta, track.timer_class, [*asked[name].readings, *more])
        found = judge_paired(asked, CASES)
    assert judge_paired(tracks, CASES) == found


# -- all times of a run ----------------------------------------------------------------------------------------------


def test_noise_is_learnt_from_the_times_of_one_timer() -> None:
    random = np.random.default_rng(3)
    slowdowns = 0.02 + 0.002 * random.standard_normal((60, 5))
    tracks = {number: PairedReadings(THETA, "clock", readings(each)) for number, each in enumerate(slowdowns.tolist())}
    together = judge_paired(tracks, CASES)
    apart = judge_paired(
        {number: PairedReadings(THETA, str(number), each.readings) for number, each in tracks.items()}, CASES
    )
    # One in twenty lies beyond what the prior explains, and stands alone.
    assert [verdict.word for verdict in together.values()].count(Word.SLOWER) >= 54
    assert all(verdict.word is None for verdict in apart.values())


def test_a_coarse_time_makes_nobody_wait() -> None:
    """Host times of processes differ by a third: after six pairs no more are asked for."""
    noise = [0.3, -0.35, 0.2, -0.25, 0.4, -0.3]

    def word(pairs: int, theta: float) -> Word | None:
        readings = [PairReading(at + 1, noise[at], 0.0, 30.0, 30.0) for at in range(pairs)]
        return judge_paired({"time": PairedReadings(theta, "host", readings)}, 1)["time"].word

    assert [word(5, math.log(1.15)), word(6, math.log(1.15))] == [None, Word.UNRESOLVED]
    assert word(6, math.log(1.03)) is None


def test_what_is_decided_stays_so_whatever_is_read_later() -> None:
    taken = [0.0, 0.0005, 0.4, 0.41, 0.4]
    [verdict] = judge_paired({"a": PairedReadings(0.1, "clock", readings(taken))}, 1).values()
    assert (verdict.word, verdict.pairs) == (Word.PASS, 2)


def test_a_stranger_s_numbers_do_not_overflow() -> None:
    """A forged report may hold changes of a millionfold, as far as its reader lets them pass, in a huge family."""
    wide = 1.5 * math.log(1e6)
    for slowdowns in ([wide, -wide, wide], [wide, -wide, wide, -wide] * 4):
        found = judged(slowdowns, family=5_000, prior=UNLEARNT)
        assert found.word in (None, Word.UNRESOLVED)
        assert found.smallest is not None
        assert math.isfinite(found.smallest)


# -- a time beside its rival's: one session suspects, fresh processes accuse, and no baseline is asked -----------------


def beside(ratio: float, rival: float = 40.0, **options: Any) -> Reading:
    """A candidate that takes `ratio` of its rival's time."""
    return Reading("beside", Unit.MICROSECONDS, rival * ratio, timer="turns", rival=rival, promise=0.05, **options)


@pytest.mark.parametrize("ratio", [0.3, 0.97, 1.0, 1.015])
def test_no_slower_passes_and_shows_both_times(ratio: float) -> None:
    verdict = judge_rival(beside(ratio))
    assert (verdict.word, verdict.before) == (Word.PASS, pytest.approx(40.0))
    assert verdict.after == pytest.approx(40.0 * ratio)
    assert verdict.ratio == pytest.approx(ratio)


def test_one_session_only_suspects() -> None:
    assert judge_rival(beside(1.10)).word is Word.SUSPECT
    assert judge_rival(beside(1.016)).word is Word.PASS  # θ is a third of the promise of 5 %
    assert judge_rival(beside(1.018)).word is Word.SUSPECT


def test_fresh_processes_that_agree_accuse_by_their_ratios_alone() -> None:
    """The machine was slower in the fresh processes, for both."""
    fresh = [beside(1.10, rival=rival) for rival in (50.0, 51.0, 49.0)]
    found = judge_rival(beside(1.30, note="9 launches, its rival 1"), fresh)
    assert found.word is Word.SLOWER
    assert found.ratio == pytest.approx(1.10)
    assert found.reason == "than its rival: in 3 process pairs; 9 launches, its rival 1"
    assert found.interval is not None
    assert found.interval[0] > 1
    assert not found.storable
    assert category_of(found) is None  # an update has nothing to write


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.10, 1.10], Word.SUSPECT),  # three are needed
        ([1.10, 1.10, 1.0], Word.SUSPECT),  # three more
        ([1.0, 1.001, 0.999], Word.PASS),
        ([0.9, 0.9, 0.9], Word.PASS),
        ([1.10, 1.0, 1.12, 0.99, 1.08, 1.01], Word.UNRESOLVED),
        ([1.10, 1.0, 0.95, 0.99, 1.05, 1.0], Word.PASS),  # not slower by θ in the mean
        ([1.08, 1.03, 1.07, 1.04, 1.06, 1.05], Word.SLOWER),
    ],
)
def test_fresh_processes_tell(ratios: list[float], word: Word) -> None:
    assert judge_rival(beside(1.10), [beside(ratio) for ratio in ratios]).word is word


def test_what_stays_open_says_what_it_would_have_seen_and_what_read_it() -> None:
    found = judge_rival(beside(1.1), [beside(each) for each in (1.10, 1.0, 1.12, 0.99, 1.08, 1.01)])
    assert found.reason == f"than its rival: {TOO_NOISY}; in 6 process pairs, about 21 would settle it"
    assert found.smallest is not None
    for third in ([], [beside(1.1, rejected_blocks=3)]):  # a disturbed process tells nothing
        assert "2 of 3 fresh processes read it" in judge_rival(beside(1.1), [beside(1.1)] * 2 + third).reason


def test_only_the_same_reading_of_the_same_inputs_counts() -> None:
    result = CaseResult(Case("suite", "a", "forward"), "x", readings=[beside(1.1)])
    other = [
        msgspec.structs.replace(result, inputs="y"),
        msgspec.structs.replace(result, readings=[msgspec.structs.replace(beside(1.1), timer="others")]),
        msgspec.structs.replace(result, readings=[]),
    ]
    lane = Lane(Hardware("here", "fake", "Here", "x1"), Toolchain())

    def told(*fresh: CaseResult) -> Verdict:
        (verdict,) = judge_session([result], lane, fresh={result.id: fresh})[result.id]
        return verdict

    assert is_slower_than_rival(result, [])
    assert told(result, result, result).word is Word.SLOWER
    assert not is_slower_than_rival(result, [result] * 3)
    for each in other:
        assert "2 of 3" in told(result, result, each).reason
        assert is_slower_than_rival(result, [result, result, each])


def test_equal_suites_are_not_accused() -> None:
    """4,000 cases as fast as their rivals, in processes that differ by 0.5 %; and 200 that are 8 % slower."""
    random = np.random.default_rng(20261122)

    def draw(ratio: float = 1.0) -> Reading:
        return beside(ratio * float(np.exp(0.005 * random.standard_normal())))

    def word(ratio: float) -> Word:
        first, fresh = draw(ratio), [draw(ratio) for _ in range(2 * RIVAL_PROCESSES)]
        if judge_rival(first).word is not Word.SUSPECT:
            return Word.PASS
        found = judge_rival(first, fresh[:RIVAL_PROCESSES]).word
        return judge_rival(first, fresh).word if found is Word.SUSPECT else found

    assert [word(1.0) for _ in range(4000)].count(Word.SLOWER) == 0
    assert [word(1.08) for _ in range(200)].count(Word.SLOWER) >= 190
