"""What is paired first where there may be too little time for all."""

from __future__ import annotations

from collections import Counter

from perfguard.model.records import Case, CaseResult, Verdict, Word
from perfguard.session.pairing.lockstep import Track
from perfguard.session.settle import FIRST, in_batches

METRIC = "device_time_us"


def asked(*names: str, ratio: float | None = None) -> dict[Track, tuple[CaseResult, Verdict]]:
    results = [CaseResult(Case("suite", name, "forward")) for name in names]
    return {
        Track("suite", result.case.key, METRIC): (result, Verdict(Word.SUSPECT, METRIC, ratio=ratio))
        for result in results
    }


def names(tracks: list[Track]) -> list[str]:
    return [track.key.partition("/")[0] for track in tracks]


def test_what_moved_most_comes_first() -> None:
    moved = asked("a[1]", ratio=1.02) | asked("b[1]", ratio=0.9) | asked("c[1]") | asked("d[1]", ratio=1.05)
    (batch,) = in_batches(moved)
    assert names(batch) == ["b[1]", "d[1]", "a[1]", "c[1]"]


def test_every_kernel_has_its_turn_in_the_first_batch() -> None:
    wanted = asked(*(f"a[{us}]" for us in range(900)), ratio=1.5) | asked("a[900]", ratio=1.6)
    wanted |= asked(*(f"b[{us}]" for us in range(100)), ratio=1.01) | asked("c[7]")
    batches = in_batches(wanted)
    assert sorted(track for batch in batches for track in batch) == sorted(wanted)
    assert names(batches[0])[:3] == ["a[900]", "b[0]", "c[7]"]
    assert Counter(name[0] for name in names(batches[0])) == {"a": 12, "b": 11, "c": 1}
    assert [len(batch) for batch in batches] == [FIRST, 96, 384, 498]
