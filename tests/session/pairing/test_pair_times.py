"""What is paired first where there may be too little time for all."""

from __future__ import annotations

import itertools
from collections import Counter

from perfguard.model.records import Case, CaseResult, Reading, Verdict, Word
from perfguard.model.units import Unit
from perfguard.session.pairing.outcome import Track
from perfguard.session.pairing.pair_times import FIRST, in_batches

METRIC = "device_time_us"


def asked(*names: str, ratio: float | None = None) -> dict[Track, tuple[CaseResult, Verdict]]:
    """Cases named `kernel[µs]`, of so many µs."""
    found = {}
    for name in names:
        us = float(name.partition("[")[2].removesuffix("]"))
        result = CaseResult(
            Case("suite", name, "forward"), readings=[Reading(METRIC, Unit.MICROSECONDS, us, timer="t")]
        )
        found[Track("suite", result.case.key, METRIC)] = result, Verdict(Word.SUSPECT, METRIC, ratio=ratio)
    return found


def names(tracks: list[Track]) -> list[str]:
    return [track.key.partition("/")[0] for track in tracks]


def test_few_are_one_batch_and_what_moved_most_comes_first() -> None:
    moved = asked("a[1]", ratio=1.02) | asked("b[1]", ratio=0.9) | asked("c[1]") | asked("d[1]", ratio=1.05)
    (batch,) = in_batches(moved, timed=4)
    assert names(batch) == ["b[1]", "d[1]", "a[1]", "c[1]"]


def test_where_most_are_in_question_a_sample_over_kernels_and_sizes_comes_first() -> None:
    wanted = asked(*(f"a[{us}]" for us in range(1, 901)), *(f"b[{us}]" for us in range(1, 101)), "c[7]")
    batches = in_batches(wanted, timed=1001)
    assert sorted(track for batch in batches for track in batch) == sorted(wanted)
    assert len(batches[0]) == FIRST
    assert Counter(name[0] for name in names(batches[0])) == {"a": 12, "b": 11, "c": 1}
    sizes = sorted(int(name[2:-1]) for name in names(batches[0]) if name[0] == "a")
    assert (sizes[0], sizes[-1]) == (1, 900)
    assert max(after - before for before, after in itertools.pairwise(sizes)) < 250
    assert [len(batch) for batch in batches] == [24, 96, 384, 497]


def test_a_minority_goes_by_how_much_it_moved() -> None:
    wanted = asked(*(f"a[{us}]" for us in range(1, 41)), ratio=1.01) | asked("b[9]", ratio=1.5)
    first, rest = in_batches(wanted, timed=200)
    assert names(first)[0] == "b[9]"
    assert (len(first), len(rest)) == (24, 17)
