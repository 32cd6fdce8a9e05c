"""Resident warps that rise on one target and fall on another, by so little that no device would feel it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfguard.model.records import CaseResult, Value, Verdict, Word
from perfguard.model.records.report import BOTH_WAYS

# Resident warps fall in steps of a block, when registers cross a unit of the allocator (8 per thread). 20 -> 16 is such
# a step of one unit. The loss of one block of four is the largest step that is no finding if others gain.
_STEP = 0.25
_METRIC = ".resident_warps"

_Moves = dict[str, dict[str, tuple[float, float]]]  # kernel -> target -> before and after


def without_both_ways(result: CaseResult, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, in which a kernel's resident warps are not gated if they fall by a step at most on some targets,
    and rise on others. A device that is here is timed; for all others this is no sign of a slower kernel."""
    moves: _Moves = defaultdict(dict)
    by_target = {each.metric: each for each in verdicts if each.metric.endswith(_METRIC)}
    for metric, verdict in by_target.items():
        for kernel, before in _parts(verdict.before).items():
            after = _parts(verdict.after).get(kernel, before)
            if before != after and verdict.word in (Word.CHANGED, Word.BETTER):
                moves[kernel][metric.removesuffix(_METRIC)] = before, after
    mixed = {kernel: of_kernel for kernel, of_kernel in moves.items() if _is_mixed(of_kernel)}

    def judged(verdict: Verdict) -> Verdict:
        before, after = _parts(verdict.before), _parts(verdict.after)
        moved = [kernel for kernel in before if before[kernel] != after.get(kernel)]
        if by_target.get(verdict.metric) is not verdict or not moved or not all(kernel in mixed for kernel in moved):
            return verdict
        texts = [f"{kernel} {_described(mixed[kernel])}" for kernel in moved]
        return replace(verdict, word=Word.PASS, reason=f"{BOTH_WAYS}{'; '.join(texts)}")

    return [*map(judged, verdicts)]


def _parts(value: Value | None) -> Mapping[str, float]:
    parts = value.items() if isinstance(value, dict) else ()
    return {kernel: warps for kernel, warps in parts if isinstance(warps, int | float)}


def _is_mixed(of_kernel: Mapping[str, tuple[float, float]]) -> bool:
    rises = any(after > before for before, after in of_kernel.values())
    falls = [after / before for before, after in of_kernel.values() if after < before]
    return rises and bool(falls) and min(falls) >= 1 - _STEP


def _described(of_kernel: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{target} {before:g} -> {after:g}" for target, (before, after) in of_kernel.items())
