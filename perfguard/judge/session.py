"""Whether a whole session is off: a slow machine moves every case, a slow kernel moves its own (docs/judging.md).

The common shift m̂ of a judged session is the median of y − μ over controls of one timer class: cases whose device
code is unchanged, else the other cases of the session. It is removed where the stored sessions show that this pays
(`Recording`); far outside what they did, the machine is the suspect, and no case can be accused on this session.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from perfguard.judge.common import LEAST_CASES, Common, Recording
from perfguard.judge.lane import Lane, ReadingId, RecordingId
from perfguard.judge.statistics import MEDIAN_PENALTY, MIN_SESSIONS, Noise, moderate
from perfguard.judge.unchanged import covered
from perfguard.records import CaseResult

LEAST_CONTROLS = 5  # unchanged cases; fewer say too little about the machine
LEAST_ALARM = 0.005  # smaller common shifts are no alarm, however quiet the stored sessions were
ALARM_SIGMAS = 4.0
ALARM_ERROR = 0.001  # false alarms per session where the shift is removed


@dataclass(frozen=True)
class Moved:
    """How far one control moved from its baseline, y − μ, and what is usual: as it stands, and as its recording is
    judged."""

    plain: float
    judged: float
    sigma: float  # between its stored sessions, as it stands
    plain_noise: float  # the same, moderated
    judged_noise: float
    recording: RecordingId


@dataclass(frozen=True)
class CommonMode:
    """How the cases of one timer class moved in one session.

    Attributes:
        controls: the cases that tell.
        unchanged: whether the device ran the very same code in them; else they are judged themselves.
        recordings: what the stored sessions have in common.
    """

    controls: Mapping[ReadingId, Moved]
    unchanged: bool
    recordings: Mapping[RecordingId, Recording]

    @property
    def shift(self) -> float:
        """The median over all controls, as a logarithm."""
        return median(moved.plain for moved in self.controls.values())

    def seen_by(self, reading: ReadingId, recording: RecordingId) -> Common | None:
        """The session as `reading` is judged with it: its own move is no part of the common one.

        The shift is removed by controls of the same recording only, since the zero of each recording's shifts is
        its own; None where too few controls are left.
        """
        others = [moved for name, moved in self.controls.items() if name != reading]
        if len(others) < self._least:
            return None
        known = self.recordings.get(recording, Recording())
        beside = [moved for moved in others if moved.recording == recording] if known.removed else []
        if len(beside) >= self._least:
            values, sigma = [moved.judged for moved in beside], known.prior.sigma
            noise = median(moved.judged_noise for moved in beside)
        else:
            values, sigma, known = [moved.plain for moved in others], self._sigma, Recording()
            noise = median(moved.plain_noise for moved in others)
        shift = median(values)
        seen = 1.4826 * median(abs(value - shift) for value in values)
        against = math.sqrt(1 + MEDIAN_PENALTY / recording[-1])  # stored centres, which have errors of their own
        error = math.sqrt(MEDIAN_PENALTY / len(values)) * max(seen, sigma * against)
        usual = max(LEAST_ALARM, ALARM_SIGMAS * error, self._usual(recording[-1], removed=known.removed))
        return Common(shift, error, usual, len(values), known, seen**2, (noise * against) ** 2)

    @property
    def _least(self) -> int:
        return LEAST_CONTROLS if self.unchanged else LEAST_CASES - 1

    @cached_property
    def _sigma(self) -> float:
        return median(moved.sigma for moved in self.controls.values())

    def _usual(self, sessions: int, removed: bool) -> float:
        """The largest common shift that the stored sessions make likely.

        A shift that is removed does no harm by itself, so that the alarm may be as rare as it is meant to be although
        a deviation of few sessions is hardly known: Student's t, which comes to four deviations at K = 20.
        """
        noise = Noise(self._deviation, sessions - 1, sessions)
        sigmas = noise.quantile(ALARM_ERROR / 2) if removed else ALARM_SIGMAS
        return sigmas * noise.standard_error(1)

    @cached_property
    def _deviation(self) -> float:
        """Of the common shift between stored sessions, as far as the controls' own recordings tell.

        Of a recording too small to tell it, the whole of what its cases vary by may be common.
        """
        known = (
            self.recordings.get(name, Recording()) for name in {moved.recording for moved in self.controls.values()}
        )
        return max(recording.deviation if recording.shifts else self._sigma for recording in known)


def common_modes(
    results: Sequence[CaseResult], lane: Lane, *, suspects: Collection[tuple[str, str]] = ()
) -> Mapping[str, CommonMode]:
    """Timer class -> how its cases moved in the session that `results` come from, judged or not.

    Controls are the unchanged cases (`covered`) that were read all the same; where there are fewer than five, every
    reading that can be judged. Classes with too few of either are left out.

    Args:
        suspects: (suite, case key) of cases that are no controls: in a fresh process those that the screen
            suspects, which were chosen for having moved.
    """
    unchanged: dict[str, dict[ReadingId, Moved]] = defaultdict(dict)
    everything: dict[str, dict[ReadingId, Moved]] = defaultdict(dict)
    for result in results:
        case = (result.case.suite, result.case.key)
        same = covered(result, lane)
        for metric, moved in _moves(result, lane):
            name = (*case, metric)
            if metric in same:
                unchanged[moved.recording[0]][name] = moved
            if metric in same or case not in suspects:
                everything[moved.recording[0]][name] = moved
    modes = {}
    for timer, controls in everything.items():
        if len(unchanged[timer]) >= LEAST_CONTROLS:
            modes[timer] = CommonMode(unchanged[timer], True, lane.recordings)
        elif len(controls) >= LEAST_CASES:
            modes[timer] = CommonMode(controls, False, lane.recordings)
    return modes


def _moves(result: CaseResult, lane: Lane) -> Iterator[tuple[str, Moved]]:
    """Metric -> y − μ of every reading of `result` that the baseline can be compared with."""
    suite, key = result.case.suite, result.case.key
    if not lane.comparable(result):
        return
    for reading in result.readings:
        known = lane.timed.get((suite, key, reading.metric))
        value = reading.value
        if known is None or reading.timer != known.entry.timer or isinstance(value, str | list | dict) or not value > 0:
            continue
        if len(known.entry.sessions) < MIN_SESSIONS or not math.isfinite(value):
            continue
        plain, usual = known.history, lane.priors[known.timer_class]
        recording = lane.recordings[known.recording]
        steady = lane.steady[suite, key, reading.metric]
        judged, prior = (steady, recording.prior) if recording.removed else (plain, usual)
        yield (
            reading.metric,
            Moved(
                plain=math.log(value) - plain.centre,
                judged=math.log(value) - judged.centre,
                sigma=math.sqrt(plain.variance),
                plain_noise=moderate(plain, usual).sigma,
                judged_noise=moderate(judged, prior).sigma,
                recording=known.recording,
            ),
        )
