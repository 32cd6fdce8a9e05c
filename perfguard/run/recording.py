"""What an update says of the times that it looked at: they are recorded, and compared with no base."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from perfguard.baselines import Change
from perfguard.records import CaseResult, Verdict, Word


def say_recorded(
    results: dict[tuple[str, str], CaseResult], planned: Sequence[Change], held: Collection[tuple[str, str]]
) -> None:
    """A time that the update looked at is not judged beside the base: it is what became of its record.

    Args:
        held: cases that it did not look at.
    """
    found = {(change.suite, change.key, change.metric): change for change in planned}
    for name, result in results.items():
        if name in held:
            continue
        verdicts = [_recorded(each, found.get((*name, each.metric))) for each in result.verdicts]
        results[name] = msgspec.structs.replace(result, verdicts=verdicts)


def _recorded(verdict: Verdict, change: Change | None) -> Verdict:
    unpaired = verdict.word is Word.UNRESOLVED and verdict.reason.startswith("UNPAIRED")
    # The tree of a commit that was made before it is recorded equals its base: its times grew over their anchors.
    if change is not None and change.needs_reason and (unpaired or verdict.word is Word.UNCHANGED):
        return msgspec.structs.replace(verdict, word=Word.SLOWER, reason=change.grown)
    if not unpaired:
        return verdict
    if change is None:
        return msgspec.structs.replace(verdict, word=Word.PASS, reason="as recorded")
    word = Word.FASTER if change.category == "faster" else Word.PASS
    return msgspec.structs.replace(verdict, word=word, reason="recorded anew")
