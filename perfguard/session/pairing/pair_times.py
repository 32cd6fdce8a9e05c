"""Pairs the times in question of a run with their base, and returns the part for the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfguard.model.config import Config
from perfguard.model.errors import UsageError
from perfguard.model.records import CaseResult, Pairing, Verdict
from perfguard.session.fresh_processes import Command
from perfguard.session.pairing.batches import in_batches
from perfguard.session.pairing.engine import Site, out_of_time
from perfguard.session.pairing.interrupts import Interrupts
from perfguard.session.pairing.outcome import Track
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worktrees import find_repository

Tell = Callable[[str], None]
Asked = Mapping[Track, tuple[CaseResult, Verdict]]


@dataclass(frozen=True)
class Start:
    """The start of other processes of a run.

    Attributes:
        command: pytest's own, for fresh processes.
        device: the device that they open, by its name for `--perfguard-device`.
        slug: slug of its hardware.
    """

    command: Command
    device: str
    slug: str


@dataclass(frozen=True)
class Counts:
    """Counts of a run: `timed` cases whose times were read, and the `family` of all times in question, over which false
    alarms are counted."""

    timed: int
    family: int


def pair_times(
    asked: Asked, base: str, start: Start, config: Config, counts: Counts, tell: Tell, keep: Callable[[Pairing], None]
) -> Pairing:
    """Measure `asked` beside the commit `base` until all times are decided, or `pair_minutes` are over.

    Args:
        asked: the times in question, with this run's results of their cases and the verdicts on them.
        keep: called with the results after each batch, and when the user ends it.
    """
    tally = Tally({track: result for track, (result, _) in asked.items()}, counts.family)
    settings = config.settings
    if not settings.pair_minutes:
        return tally.pairing(base, "[tool.perfguard] pair_minutes is 0")
    deadline = time.monotonic() + 60 * settings.pair_minutes
    problem = ""
    try:
        with Interrupts() as interrupts, _site(start, config, interrupts, tell) as site, interrupts.armed():
            tell(f"{len(asked)} time{'s' * (len(asked) != 1)} in question: measured beside {base[:12]} by turns")
            site.lay_out(base)
            for track in asked:
                if not site.plan.has(asked[track][0].case.nodeid, "base"):
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


def _site(start: Start, config: Config, interrupts: Interrupts, tell: Tell) -> Site:
    repository = find_repository(config.root)
    command = start.command
    root = repository.root.resolve()
    folder = command.folder if command.folder.resolve().is_relative_to(root) else config.root
    arguments = (*command.arguments, f"--perfguard-device={start.device}")
    return Site(repository, Path(folder), arguments, start.slug, config.settings, interrupts, tell)
