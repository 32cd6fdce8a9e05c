"""All expected lanes of one commit, validated and judged: the input of the comment, the statuses and the page.

The change's own code wrote every number of a report. A change passes if it miscounts its launches, times an empty
function, or writes its report by hand. Process pairs do not prevent this: a forgery can slow down the base, or pair the
head with itself. This is accepted, since only a machine that runs none of the change's code could detect it, and the
forgery is part of the change, open to review. Honest mistakes are not accepted: a lane may have compared with another
commit than the merge base. If that is the measured commit itself, every time is UNCHANGED, and every fault an old one.
So answers, process pairs and the claim of an equal tree count only if the base is the right commit, and the last only
if GitHub lists no file of code among those that the change edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perfguard.github.lanes.baseline_edits import accepted, list_edits
from perfguard.github.lanes.baselines_at_commit import BaselineSet, folders_of
from perfguard.github.lanes.judge_again import judge_again, lenient, unmeasured
from perfguard.github.lanes.untrusted_report import Received
from perfguard.judge.lane import Lane
from perfguard.model.errors import LaneError
from perfguard.model.records import BaseTree, ReadingId, Report
from perfguard.model.records.report import commits_beside
from perfguard.render.overview import LaneView, Overview
from perfguard.render.words import listed


@dataclass(frozen=True)
class Reference:
    """The baselines that judge the lanes, and the commit that their times must be compared with.

    Attributes:
        base: the baselines of the merge base.
        head: the baselines of the change; None if its edits are not judged (a push).
        commit: the full hash of the merge base, the base of all times; None if it is unknown (a push).
        code: files of code that differ between the merge base and the head, as far as GitHub lists them.
    """

    base: BaselineSet
    head: BaselineSet | None = None
    commit: str | None = None
    code: Sequence[str] = ()


def of_lane(lane: str, received: Received) -> Received:
    """A report at hand as that of a lane, whose name says whether times were to be read.

    Raises:
        LaneError: it is of other hardware.
    """
    hardware = received.report.hardware
    if lane not in (hardware.slug, hardware.target):
        raise LaneError(f"its report is of {hardware.slug!r}")
    return replace(received, report=replace(received.report, exact_only=lane != hardware.slug))


def judge_lanes(received: Mapping[str, Received | str], reference: Reference) -> Overview:
    """Judge every lane with a report, and list the change's baseline edits, for an overview.

    Args:
        received: lane -> its report, or why there is none.
    """
    lanes, edits, warnings, reports = [], [], [], []
    for name, delivery in received.items():
        if isinstance(delivery, str):
            lanes.append(LaneView(name, problem=delivery))
            continue
        lanes.append(_view(name, delivery, reference))
        warnings += _warnings(name, delivery.report, reference)
        reports.append(delivery.report)
    if reference.head is not None:
        edits = list_edits(reference.base, reference.head, reports)
        warnings += [f"the change's baselines: {problem}" for problem in reference.head.problems.values()]
    return Overview(lanes, sorted(edits, key=lambda edit: not edit.loosens), warnings=warnings)


def _view(name: str, received: Received, reference: Reference) -> LaneView:
    report = _beside(received.report, reference)
    problem = reference.base.problem_in(folders_of(report))
    if problem:
        return LaneView(name, problem=problem)

    def lane_of(baselines: BaselineSet) -> Lane:
        return baselines.lane(report.hardware, report.toolchain, exact_only=report.exact_only)

    lane = lane_of(reference.base)
    judged = judge_again(report, lane)
    missing = unmeasured(judged, lane)
    covered: list[ReadingId] = []
    if reference.head is not None:
        under_edits = judge_again(report, lane_of(reference.head))
        covered = accepted(judged, under_edits, missing, reference.base, reference.head)
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


def _beside(report: Report, reference: Reference) -> Report:
    """The report, without the answers of its bases and its claim of an equal tree if one base is not the merge base, or
    if the tree cannot be equal to it."""
    commit = reference.commit
    others = [each for each in commits_beside(report) if each != commit]
    if commit is None:
        return report
    if not others:
        bases = [*report.bases.values(), *([report.base] if report.base is not None else [])]
        if not reference.code or not any(base.equal for base in bases):
            return report
        why = f"reported as equal to {commit[:12]}, but the change edits {listed(reference.code)}; run the lane again"
        return replace(report, base=BaseTree(problem=why), bases={}, pairings=[])
    # Running the job again does not help, since it gets the event of the first run, with the same base.
    step = "push again or reopen the pull request, for a new run"
    if _is_beside_itself(report):
        step = "give the lane --perfguard-base (docs/ci.md)"
    why = f"compared with {listed([each[:12] for each in others])}, the merge base is {commit[:12]}; {step}"
    return replace(report, base=BaseTree(problem=why), bases={}, pairings=[])


def _is_beside_itself(report: Report) -> bool:
    """Whether the report's base is the measured commit itself."""
    head = (report.commit or "").removesuffix("+")
    return bool(head) and any(commit.startswith(head) for commit in commits_beside(report))


def _warnings(name: str, report: Report, reference: Reference) -> list[str]:
    warnings = [
        f"{name}: {count} readings of {metric[:100]} had more lenient limits than perfguard's, which were used instead"
        for metric, count in sorted(lenient(report.results).items())
    ]
    if (report.commit or "").endswith("+"):
        warnings.append(f"{name}: tracked files of the checkout were changed before it was measured")
    commits = commits_beside(report) if reference.commit is None else []
    if commits and _is_beside_itself(report):
        warnings.append(
            f"{name}: compared with its own commit, so that nothing can differ; "
            "give the lane --perfguard-base (docs/ci.md)"
        )
    elif commits:
        warnings.append(
            f"{name}: compared with {listed([commit[:12] for commit in commits])}, as the report says: "
            "the commit before this one is not known here"
        )
    return warnings
