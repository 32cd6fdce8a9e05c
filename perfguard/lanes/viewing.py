"""All expected lanes of one commit, validated and judged: what the comment, the statuses and the page are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from perfguard.errors import LaneError
from perfguard.judge import Lane
from perfguard.lanes.edits import Edited, accepted, list_edits, patched
from perfguard.lanes.judging import judge_again, unmeasured
from perfguard.lanes.limits import hold, lenient
from perfguard.lanes.reading import Received, receive
from perfguard.lanes.remembered import Remembered, folders_of
from perfguard.overview import BaselineEdit, LaneView
from perfguard.records import Report


class Delivery(Struct, frozen=True):
    """What one expected lane uploaded: an archive, or why there is none."""

    lane: str
    archive: bytes | None = None
    problem: str = ""


class Arrived(Struct, frozen=True):
    """An expected lane after validation: a report, or why there is none."""

    lane: str
    received: Received | None = None
    problem: str = ""


@dataclass(frozen=True)
class Trusted:
    """What lanes are judged by.

    Attributes:
        base: baselines of the merge base; of the base's tip where that is to judge.
        head: those of the change; None where it edits none that are judged (a push).
        confirmations: fresh processes that must agree, by the merge base's settings.
        left: the merge base's, where the base's tip judges.
    """

    base: Remembered
    head: Remembered | None = None
    confirmations: int = 3
    left: Remembered | None = None

    @property
    def unedited(self) -> Remembered:
        """What the change started from."""
        return self.base if self.left is None else self.left


@dataclass
class Views:
    """Every expected lane, the change's edits of the baselines, and what a reader should know."""

    lanes: list[LaneView] = field(default_factory=list)
    edits: list[BaselineEdit] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def arrive(deliveries: Sequence[Delivery], head: str) -> list[Arrived]:
    """Validate what each lane uploaded for commit `head`; a lane that is refused spoils no other."""
    arrived = []
    for delivery in deliveries:
        if delivery.archive is None:
            arrived.append(Arrived(delivery.lane, problem=delivery.problem or "no result"))
            continue
        try:
            arrived.append(Arrived(delivery.lane, receive(delivery.lane, delivery.archive, head)))
        except LaneError as error:
            arrived.append(Arrived(delivery.lane, problem=str(error)))
    return arrived


def view(arrived: Sequence[Arrived], trusted: Trusted) -> Views:
    """Judge every lane that arrived, and list what the change edits in the baselines."""
    views = Views()
    for lane in arrived:
        if lane.received is None:
            views.lanes.append(LaneView(lane.lane, problem=lane.problem))
            continue
        views.lanes.append(_view(lane.lane, lane.received, trusted))
        views.warnings += [*lane.received.warnings, *_warnings(lane.lane, lane.received.report, trusted)]
    reports = [lane.received.report for lane in arrived if lane.received]
    if trusted.head is not None:
        folders = sorted({*trusted.unedited.folders, *trusted.head.folders})
        views.edits = list_edits(Edited(trusted.unedited, trusted.head, folders), reports)
        views.warnings += [f"the change's baselines: {problem}" for problem in trusted.head.problems.values()]
    return views


def _view(name: str, received: Received, trusted: Trusted) -> LaneView:
    report = received.report
    folders = folders_of(report)
    broken = [path for path in trusted.base.problems if _is_below(path, folders)]
    if broken:
        return LaneView(name, problem=trusted.base.problems[broken[0]])
    lane = _lane(trusted.base, report, trusted)
    judged = judge_again(report, lane)
    missing = unmeasured(judged, lane)
    covered: list[tuple[str, str, str]] = []
    if trusted.head is not None:
        edited = Edited(trusted.unedited, trusted.head, folders)
        edited_lane = _lane(patched(edited, trusted.base), report, trusted)
        covered = accepted(judged, judge_again(report, edited_lane), missing, edited)
    refused = {each.name for each in received.refused}
    return LaneView(
        name=name,
        report=judged,
        baselines={**lane.portable, **lane.baselines},
        refused=received.refused,
        unmeasured=[
            f"{key}: {metric}" if metric else key
            for suite, key, metric in missing
            if (suite, key, metric) not in covered and key not in refused
        ],
        accepted=covered,
    )


def _lane(remembered: Remembered, report: Report, trusted: Trusted) -> Lane:
    confirmations, exact_only = trusted.confirmations, report.exact_only
    return remembered.lane(report.hardware, report.toolchain, confirmations, exact_only=exact_only)


def _warnings(name: str, report: Report, trusted: Trusted) -> list[str]:
    counts = lenient(report.results, [hold(result) for result in report.results])
    return [
        f"{name}: {count} readings of {metric[:100]} came with more lenient limits than perfguard's; its own were taken"
        for metric, count in sorted(counts.items())
    ]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(f"/{folder}/" in f"/{path}/" for folder in folders)
