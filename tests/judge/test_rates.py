"""What the ladder promises a suite of 200 cases, simulated: hardly a false alarm, and power at 2 % and 3 %.

Student-t4 session noise with a median deviation of 0.3 %, a common shift of 0.5 % between sessions, K = 8; cases alike
(log-SD 0.3) and unlike (0.6); with 20 unchanged controls and with none. docs/judging.md has larger runs of it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from perfguard.records import Word
from tests.judge.simulation import Suite, able, alarmed, draw, judge

SUITES = [Suite(unlike=unlike, controls=controls) for unlike in (0.3, 0.6) for controls in (0, 20)]


def test_false_alarms_of_unchanged_suites() -> None:
    random = np.random.default_rng(20261121)
    each, alarms, rivals = 75, Counter[Word](), 0
    words: Counter[Word] = Counter()
    for suite in SUITES:
        for _ in range(each):
            verdicts = judge(suite, random)
            words.update(verdict.word for verdict in verdicts)
            alarms.update(word for word in (Word.SLOWER, Word.FASTER) if alarmed(verdicts, word))
            one, other = draw(suite, random)[-2:, :, 1]
            rivals += bool((other / one > 1.02).any())
    suites = each * len(SUITES)
    for word in (Word.SLOWER, Word.FASTER):
        # One-sided 95 % bound: 0 of 300 excludes more than 1 %.
        bound = stats.binomtest(alarms[word], suites).proportion_ci(0.90, method="exact").high
        assert bound <= 0.01
    assert rivals > 0.1 * suites  # a fixed 2 % gate of one session against one, on the same noise
    assert words[Word.PASS] > 0.9 * words.total()  # quiet is not bought with UNRESOLVED


@pytest.mark.parametrize("suite", SUITES, ids=str)
@pytest.mark.parametrize(("slowdown", "target"), [(0.02, 0.90), (0.03, 0.95)])
def test_power(suite: Suite, slowdown: float, target: float) -> None:
    random, slow = np.random.default_rng(8), 20
    verdicts = [verdict for _ in range(20) for verdict in judge(suite, random, slowdown, slow)[:slow]]
    seeing = list(able(verdicts))
    found = sum(verdict.word is Word.SLOWER for verdict in seeing)
    print(f"{suite}: MDE <= 3 % in {len(seeing) / len(verdicts):.1%}, {found / len(seeing):.1%} of them found")
    assert len(seeing) >= (0.94 if suite.unlike < 0.5 else 0.82) * len(verdicts)
    # Not significantly below the target: the suites are few enough to run in seconds.
    assert stats.binomtest(found, len(seeing)).proportion_ci(0.95, method="exact").high >= target
    assert found / len(seeing) >= target - 0.03


@pytest.mark.parametrize("controls", [0, 20])
def test_another_board_accuses_nobody(controls: int) -> None:
    """It moves each case by 0.5 % (one standard deviation) in all its sessions; five runs on H200s moved them by 0.4 to
    1.1 %. Without a look at the other cases' scatter more than 20 of 30 such suites hold a false SLOWER."""
    random, suite = np.random.default_rng(10), Suite(controls=controls, apart=0.005)
    suites = [judge(suite, random) for _ in range(20)]
    assert not any(alarmed(verdicts, word) for verdicts in suites for word in (Word.SLOWER, Word.FASTER))
    slowed = [verdict for _ in range(3) for verdict in judge(suite, random, 0.10, 20)[:20]]
    assert sum(verdict.word is Word.SLOWER for verdict in slowed) > 0.9 * len(slowed)


def test_a_slowdown_too_small_to_matter_is_not_accused() -> None:
    random = np.random.default_rng(9)
    verdicts = [verdict for _ in range(5) for verdict in judge(Suite(controls=20), random, 0.004, 20)[:20]]
    assert not alarmed(verdicts)


@pytest.mark.parametrize(("common", "median"), [(0.002, 0.001), (0.003, 0.001), (0.003, 0.002)])
def test_a_suite_too_small_to_tell_the_common_shift_is_not_alarmed_by_it(common: float, median: float) -> None:
    """Sessions differ as the stored ones did: what is 5 % slower is SLOWER, not the machine's doing."""
    random, small = np.random.default_rng(3), Suite(cases=7, controls=6, common=common, median=median)
    words = Counter(verdict.word for _ in range(200) for verdict in judge(small, random, 0.05))
    assert words[Word.SLOWER] >= 0.97 * words.total()
    assert words[Word.FASTER] == 0
