"""Two trees beside each other: asked after every process pair, it neither cries wolf nor sleeps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfguard.judge import PairVerdict, judge_pairs, learn_pairs
from perfguard.judge.statistics import UNLEARNT, Prior
from perfguard.records import Word

THETA, CASES = 0.01, 200
PRIOR = Prior(8.0, 0.003)


def judged(
    differences: list[float], controls: list[float] | None = None, most_pairs: int = 12, prior: Prior = PRIOR
) -> PairVerdict:
    controls = [0.0] * len(differences) if controls is None else controls
    return judge_pairs(differences, controls, theta=THETA, family=CASES, prior=prior, most_pairs=most_pairs)


def test_a_clear_slowdown_takes_three_pairs() -> None:
    assert judged([0.05, 0.051]).word is None
    verdict = judged([0.05, 0.051, 0.049])
    assert (verdict.word, verdict.pairs) == (Word.SLOWER, 3)
    assert verdict.effect == pytest.approx(0.05)
    assert verdict.interval[0] < 0.05 < verdict.interval[1]
    assert verdict.reason.startswith("+5.1 % in 3 process pairs (95 % interval +")
    assert judged([-0.05, -0.051, -0.049]).word is Word.FASTER


def test_equal_trees_take_two_pairs() -> None:
    assert judged([0.0], [0.0]).word is None
    verdict = judged([0.0005, -0.0005], [0.0, 0.0])
    assert (verdict.word, verdict.pairs) == (Word.PASS, 2)


def test_one_pair_of_a_noise_that_nobody_knows_decides_nothing() -> None:
    assert judged([0.0], prior=UNLEARNT).word is None
    assert judged([0.2], prior=UNLEARNT).word is None


def test_what_the_control_shows_too_is_no_effect() -> None:
    assert judged([0.03, 0.031, 0.029], [0.03, 0.029, 0.031]).word is Word.PASS
    # A control off in the other direction makes no slowdown of what is none by itself.
    assert judged([0.008, 0.008, 0.008, 0.008], [-0.02, -0.02, -0.02, -0.02]).word is None


def test_interval_is_the_formulas() -> None:
    # n = 3: squares 2e-6 + 2e-6 on 4 degrees, d0 = 8: 12 degrees, t(0.975) = 2.1788
    verdict = judged([0.020, 0.021, 0.019], [0.001, 0.0, -0.001])
    sigma = math.sqrt((8 * 0.003**2 + 4e-6) / 12)
    assert verdict.interval[1] - verdict.effect == pytest.approx(2.1788 * sigma * math.sqrt(2 / 3), rel=1e-4)


def test_neither_is_unresolved_in_the_end_with_what_it_could_have_told() -> None:
    undecided = [0.02, -0.01, 0.03, 0.0] * 3
    assert judged(undecided[:11]).word is None
    verdict = judged(undecided)
    assert (verdict.word, verdict.pairs) == (Word.UNRESOLVED, 12)
    assert verdict.reason.startswith(
        f"NOISY: could have seen a change of {100 * verdict.smallest:.1f} % at the smallest"
    )


@pytest.mark.parametrize(("differences", "controls"), [([], []), ([0.1], []), ([0.1], [0.1, 0.2])])
def test_pairs_have_both_halves(differences: list[float], controls: list[float]) -> None:
    with pytest.raises(ValueError, match="pass one of each"):
        judge_pairs(differences, controls, theta=THETA, family=1, prior=PRIOR)


@given(st.lists(st.tuples(st.floats(-0.1, 0.1), st.floats(-0.1, 0.1)), min_size=1, max_size=12))
def test_turning_the_sides_turns_the_word(pairs: list[tuple[float, float]]) -> None:
    differences, controls = [d for d, _ in pairs], [c for _, c in pairs]
    one, other = judged(differences, controls), judged([-d for d in differences], [-c for c in controls])
    turned = {Word.SLOWER: Word.FASTER, Word.FASTER: Word.SLOWER}
    assert other.word is (turned.get(one.word, one.word) if one.word else None)
    assert other.effect == pytest.approx(-one.effect)
    if one.word is Word.SLOWER:
        assert one.pairs >= 3
        assert one.effect > THETA


def test_noise_is_learnt_from_both_halves_of_all_cases() -> None:
    random = np.random.default_rng(3)
    drawn = 0.004 * random.standard_normal((500, 2, 3)) + 0.1 * random.standard_normal((500, 2, 1))
    learnt = learn_pairs([(case[0], case[1]) for case in drawn.tolist()])
    assert learnt.learnt
    assert learnt.sigma == pytest.approx(0.004, rel=0.05)
    assert learn_pairs([([], []), ([0.1], [0.1])]) == UNLEARNT


def suites(
    count: int, random: np.random.Generator, slowdown: float = 0.0, slow: int = 0
) -> Iterator[list[PairVerdict]]:
    """Suites of 200 cases asked after every pair: t4 noise of 0.3 % (median), 0.2 % bias of path and slot."""
    for _ in range(count):
        sigma = 0.003 * np.exp(0.6 * random.standard_normal(CASES))
        bias = 0.002 * random.standard_normal(CASES)
        noise = sigma * random.standard_t(4, (12, 2, CASES)) / np.sqrt(2) + bias
        noise[:, 0, :slow] += np.log1p(slowdown)
        pairs = noise.transpose(2, 1, 0).tolist()  # case -> differences, controls
        taken, found = [0] * CASES, dict[int, PairVerdict]()
        for _ in range(12):
            open_cases = [case for case in range(CASES) if case not in found]
            for case in open_cases:
                taken[case] += 1
            seen = [(d[:n], c[:n]) for (d, c), n in zip(pairs, taken, strict=True)]
            prior = learn_pairs(seen)
            for case in open_cases:
                verdict = judge_pairs(*seen[case], theta=THETA, family=CASES, prior=prior)
                if verdict.word is not None:
                    found[case] = verdict
        yield [found[case] for case in range(CASES)]


def test_equal_trees_raise_no_alarm_over_a_suite() -> None:
    alarms, words, count = Counter[Word](), Counter[Word | None](), 60
    for verdicts in suites(count, np.random.default_rng(12)):
        found = Counter(verdict.word for verdict in verdicts)
        words += found
        alarms.update(word for word in (Word.SLOWER, Word.FASTER) if found[word])
    for word in (Word.SLOWER, Word.FASTER):
        # 60 suites cannot exclude 1 %, but they would show 5 %; docs/judging.md has a run that can.
        assert stats.binomtest(alarms[word], count).proportion_ci(0.90, method="exact").high <= 0.05
    assert words[Word.PASS] > 0.9 * words.total()


def test_slowdowns_are_found_in_few_pairs() -> None:
    verdicts = [v for suite in suites(8, np.random.default_rng(13), 0.03, 20) for v in suite[:20]]
    assert sum(verdict.word is Word.SLOWER for verdict in verdicts) >= 0.95 * len(verdicts)
    assert sum(verdict.pairs for verdict in verdicts) < 6 * len(verdicts)


def test_a_small_but_certain_effect_is_the_same() -> None:
    """Between θ/2 and θ the sequential test alone would never end."""
    quiet = Prior(8.0, 1e-4)
    assert judged([0.007] * 6, prior=quiet).word is Word.PASS
    assert judged([0.0099] * 6, prior=quiet).word is None
