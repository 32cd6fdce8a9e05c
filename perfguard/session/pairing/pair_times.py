"""Pairs the times in question of a run with their base, and returns the part for the report."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfguard.model.config import Config
from perfguard.model.errors import UsageError
from perfguard.model.records import CaseResult, Pairing, Verdict
from perfguard.session.child import ChildCommand
from perfguard.session.pairing.engine import Site, out_of_time
from perfguard.session.pairing.interrupts import Interrupts
from perfguard.session.pairing.outcome import Track
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worktrees import find_repository

FIRST = 24  # times in the first batch: each process pair takes seconds to start, and more tests cost little
_GROWTH = 4  # size of a batch / size of the one before
MOST = 0.5  # share of the timed cases in question above which a sample of them comes first

Tell = Callable[[str], None]
Asked = Mapping[Track, tuple[CaseResult, Verdict]]


@dataclass(frozen=True)
class Counts:
    """Counts of a run: `timed` cases whose times were read, and the `family` of all times in question, over which false
    alarms are counted."""

    timed: int
    family: int


def pair_times(
    asked: Asked,
    base: str,
    command: ChildCommand,
    slug: str,
    config: Config,
    counts: Counts,
    tell: Tell,
    keep: Callable[[Pairing], None],
) -> Pairing:
    """Measure `asked` beside the commit `base` until all times are decided, or `pair_minutes` are over.

    Args:
        asked: the times in question, with this run's results of their cases and the verdicts on them.
        command: starts children of the run.
        slug: slug of its hardware.
        keep: called with the results after each batch, and when the user ends it.
    """
    tally = Tally({track: result for track, (result, _) in asked.items()}, counts.family)
    settings = config.settings
    if not settings.pair_minutes:
        return tally.pairing(base, "[tool.perfguard] pair_minutes is 0")
    deadline = time.monotonic() + 60 * settings.pair_minutes
    problem = ""
    try:
        with Interrupts() as interrupts, _site(command, slug, config, interrupts, tell) as site, interrupts.armed():
            tell(f"{len(asked)} time{'s' * (len(asked) != 1)} in question: measured beside {base[:12]} by turns")
            site.lay_out(base)
            for track, (result, _) in asked.items():
                if not site.has("base", result.case.nodeid, config.root):
                    tally.give_up(track, "new since the base")
            for batch in in_batches(asked, counts.timed):
                site.measure(tally, batch, deadline)
                keep(tally.pairing(base, ""))
                if tally.problem or time.monotonic() > deadline:
                    problem = tally.problem or out_of_time(settings)
                    break
    except KeyboardInterrupt:
        keep(tally.pairing(base, "interrupted"))
        raise
    except UsageError as error:
        problem = str(error)
    return tally.pairing(base, problem)


def _site(command: ChildCommand, slug: str, config: Config, interrupts: Interrupts, tell: Tell) -> Site:
    repository = find_repository(config.root)
    if not command.folder.resolve().is_relative_to(repository.root.resolve()):
        command = replace(command, folder=config.root)
    return Site(repository, command, slug, config.settings, interrupts, tell)


def in_batches(asked: Asked, timed: int) -> list[list[Track]]:
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
