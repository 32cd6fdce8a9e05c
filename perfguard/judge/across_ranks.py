"""Merges the results of several ranks for one case into one result, whose verdicts name ranks."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from perfguard.model.records import Accuracy, Across, CaseResult, Doubt, Parts, Reading, Value, Verdict, Word
from perfguard.model.units import Unit, format_bytes

Key = TypeVar("Key", bound=Hashable)

_BETWEEN = "; "  # This joins the entries of a rank's list.
_OF_RANK = re.compile(r"rank (\d+)(: |$)")


def ranks_of(which: Iterable[int], ranks: int) -> str:
    """`rank 1 of 4`, `ranks 1, 3 of 4`, `all 4 ranks`."""
    named = sorted(set(which))
    if len(named) == ranks:
        return f"all {ranks} ranks" if ranks > 1 else "the one rank"
    return f"rank{'s' * (len(named) > 1)} {', '.join(map(str, named))} of {ranks}"


def with_ranks(problems: Sequence[Sequence[str]]) -> list[str]:
    """The problems of all ranks, each once, with the ranks that have it.

    Args:
        problems: the problems of each rank.
    """
    return [f"{text} (on {ranks_of(which, len(problems))})" for text, which in _where(problems).items()]


def merge_ranks(results: Sequence[Sequence[CaseResult]]) -> list[CaseResult]:
    """One result for each case, from the results of each rank.

    A case is WRONG if a reading differs that must be equal on all ranks, or if only some ranks have the case: ranks
    that make different calls deadlock sooner or later.

    Args:
        results: the results of each rank, in the order of its calls.
    """
    ranks = len(results)
    by_case = [{result.case: result for result in own} for own in results]
    merged = []
    for case in dict.fromkeys(case for own in by_case for case in own):
        having = {rank: own[case] for rank, own in enumerate(by_case) if case in own}
        result = _merged(list(having.values()))
        if len(having) < ranks:
            reason = f"ranks disagree: guarded on {ranks_of(having, ranks)} only; every rank must make the same calls"
            result = replace(result, readings=[], verdicts=[Verdict(Word.WRONG, reason=reason)])
        merged.append(result)
    return [result for result in merged if result.readings or result.verdicts or result.doubts]


def _merged(own: Sequence[CaseResult]) -> CaseResult:
    """The merged result of ranks that all have the case."""
    first = own[0]
    verdicts = _verdicts(own)
    readings = [] if verdicts else _readings(own, verdicts)
    if any(verdict.word is Word.WRONG for verdict in verdicts):
        readings = []
    return replace(
        first,
        inputs=_joined([result.inputs for result in own]),
        accuracy=_accuracies(own),
        readings=readings,
        verdicts=verdicts,
        doubts=_doubts(own),
        notes=with_ranks([result.notes for result in own]) if _differ([r.notes for r in own]) else first.notes,
        seconds=max(result.seconds for result in own),
        ranks=len(own),
    )


def _verdicts(own: Sequence[CaseResult]) -> list[Verdict]:
    """The verdicts of all ranks, each once, with its ranks in the reason."""
    first = {(v.word, v.metric, v.reason): v for result in reversed(own) for v in reversed(result.verdicts)}
    by_key = _where([dict.fromkeys((v.word, v.metric, v.reason) for v in result.verdicts) for result in own])
    return [replace(first[key], reason=f"{key[2]} (on {ranks_of(which, len(own))})") for key, which in by_key.items()]


def _doubts(own: Sequence[CaseResult]) -> list[Doubt]:
    """The doubts of all ranks, each once, with its ranks in the problem."""
    first = {doubt.problem: doubt for result in reversed(own) for doubt in reversed(result.doubts)}
    by_text = _where([dict.fromkeys(doubt.problem for doubt in result.doubts) for result in own])
    return [replace(first[text], problem=f"{text} (on {ranks_of(which, len(own))})") for text, which in by_text.items()]


def _readings(own: Sequence[CaseResult], verdicts: list[Verdict]) -> list[Reading]:
    """The merged readings of all ranks; disagreements are added to `verdicts`."""
    readings = []
    for metric in dict.fromkeys(reading.metric for result in own for reading in result.readings):
        per_rank = [result.reading(metric) for result in own]
        present = [reading for reading in per_rank if reading is not None]
        if len(present) < len(per_rank):
            which = ranks_of([rank for rank, reading in enumerate(per_rank) if reading is not None], len(own))
            verdicts.append(Verdict(Word.WRONG, metric, f"ranks disagree: read on {which} only"))
            continue
        values = [reading.value for reading in present]
        if not _differ(values):
            readings.append(present[0])
        elif present[0].across is Across.MOST:
            readings.append(_most(present))
        elif present[0].across is Across.EACH:
            readings.append(replace(present[0], value=_each(values)))
        else:
            verdicts.append(Verdict(Word.WRONG, metric, f"ranks disagree: {_joined([str(v) for v in values])}"))
    return readings


def _most(present: Sequence[Reading]) -> Reading:
    """The reading of the rank with the greatest value, with a note that names the rank."""
    numbers = [reading.value if isinstance(reading.value, int | float) else 0 for reading in present]
    rank = numbers.index(max(numbers))
    texts = [format_bytes(number) if present[0].unit is Unit.BYTES else f"{number:g}" for number in numbers]
    note = f"{present[0].metric}: the greatest is rank {rank}'s, of {', '.join(texts)}"
    return replace(present[rank], note=note)


def _each(values: Sequence[Value]) -> Parts:
    """The values of all ranks as parts of one value, each of which is compared separately."""
    parts: Parts = {}
    for rank, value in enumerate(values):
        if isinstance(value, dict):
            parts |= {f"rank {rank}: {name}": part for name, part in value.items()}
        else:
            parts[f"rank {rank}"] = _BETWEEN.join(value) if isinstance(value, list) else value
    return parts


def lists_of(before: object, after: object) -> tuple[list[str], list[str]] | None:
    """The lists from which `_each` made two parts; None if they were no lists."""
    if isinstance(before, str) and isinstance(after, str) and _BETWEEN in before + after:
        return before.split(_BETWEEN), after.split(_BETWEEN)
    return None


def by_rank(stored: Value, now: Value) -> tuple[Value, Value]:
    """Both values with parts for each rank, if one has them: ranks can agree in one value and differ in the other."""
    ranks, others = (_ranks_in(value) for value in (stored, now))
    if bool(ranks) == bool(others):
        return stored, now
    return (stored, _each([now] * ranks)) if ranks else (_each([stored] * others), now)


def _ranks_in(value: Value) -> int:
    """The number of ranks that a value has parts of; 0 if it is the same on all ranks."""
    parts = [_OF_RANK.match(name) for name in value] if isinstance(value, dict) else []
    return max((int(each[1]) + 1 for each in parts if each), default=0)


def _accuracies(own: Sequence[CaseResult]) -> list[Accuracy]:
    """The accuracy of each output, from the rank where it is worst."""
    outputs: dict[str, list[Accuracy]] = {}
    for result in own:
        for accuracy in result.accuracy:
            outputs.setdefault(accuracy.output, []).append(accuracy)
    return [max(found, key=lambda each: (bool(each.problem), each.error_ratio or 0.0)) for found in outputs.values()]


def _joined(texts: Sequence[str]) -> str:
    """The text that all ranks share, or each text with its ranks."""
    if not _differ(texts):
        return texts[0]
    return "; ".join(
        f"{text} on {ranks_of(which, len(texts))}" for text, which in _where([[text] for text in texts]).items()
    )


def _differ(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values[1:])


def _where(of_ranks: Sequence[Iterable[Key]]) -> dict[Key, list[int]]:
    """Item -> the ranks that have it."""
    ranks_by_item: dict[Key, list[int]] = {}
    for rank, own in enumerate(of_ranks):
        for item in own:
            ranks_by_item.setdefault(item, []).append(rank)
    return ranks_by_item
