"""The order in which times are paired, for when there are too many for the time limit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from perfguard.model.records import CaseResult, Verdict
from perfguard.session.pairing.outcome import Track

FIRST = 24  # times in the first batch: each process pair takes seconds to start, and more tests cost little
_GROWTH = 4  # size of a batch / size of the one before
MOST = 0.5  # share of the timed cases in question above which a sample of them comes first


def in_batches(asked: Mapping[Track, tuple[CaseResult, Verdict]], timed: int) -> list[list[Track]]:
    """The times in question in batches, those that moved most against their record first.

    If more than half of the timed cases are in question, the first batch is a sample of them, spread over kernels and
    durations, so that every kernel has a result before the time is over.

    Args:
        timed: cases of the run whose times were read.
    """
    tracks = sorted(asked, key=lambda track: -_moved(asked[track][1]))
    cases = {track[:2] for track in tracks}
    if len(cases) > MOST * timed and len(tracks) > FIRST:
        sample = _spread({track: asked[track][0] for track in tracks})
        tracks = [*sample, *(track for track in tracks if track not in set(sample))]
    batches, size = [], FIRST
    while tracks:
        batches.append(tracks[:size])
        tracks, size = tracks[size:], size * _GROWTH
    return batches


def _moved(verdict: Verdict) -> float:
    return abs(math.log(verdict.ratio)) if verdict.ratio else 0.0


def _spread(tracks: Mapping[Track, CaseResult]) -> list[Track]:
    """A sample of FIRST times: equally many of each test function, from short to long."""
    functions: dict[tuple[str, str], list[Track]] = defaultdict(list)
    for track, result in sorted(tracks.items(), key=lambda pair: _time(*pair)):
        functions[track.suite, result.case.name.partition("[")[0]].append(track)
    chosen: list[Track] = []
    queues = [_ends_first(found) for found in functions.values()]
    while len(chosen) < FIRST and any(queues):
        for queue in queues:
            if queue and len(chosen) < FIRST:
                chosen.append(queue.pop(0))
    return chosen


def _time(track: Track, result: CaseResult) -> float:
    reading = result.reading(track.metric)
    return float(reading.value) if reading is not None and isinstance(reading.value, int | float) else 0.0


def _ends_first(found: Sequence[Track]) -> list[Track]:
    """The longest, the shortest, the middle one, then the quarters …: any first few of them are spread."""
    order: list[Track] = []
    parts = 1
    while len(order) < len(found):
        at = [round((len(found) - 1) * (1 - part / parts)) for part in range(parts + 1)]
        order += [found[each] for each in dict.fromkeys(at) if found[each] not in order]
        parts *= 2
    return order
