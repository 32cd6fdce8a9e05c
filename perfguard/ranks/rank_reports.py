"""Merges the reports of all ranks on one test into one report for each phase."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from perfguard.judge.across_ranks import merge_ranks, ranks_of
from perfguard.model.records import CaseResult
from perfguard.pytest_plugin.ending import failed_report
from perfguard.pytest_plugin.failures import OTHERWISE, PHASES
from perfguard.ranks.launch import Ended, Lost, RankExit, RankOutcome


@dataclass(frozen=True)
class Merged:
    """One test on all ranks.

    Attributes:
        reports: one report of each phase that a rank has reached.
        results: the merged results of its guarded calls, without verdicts.
        broken: the reason why it is BROKEN; otherwise empty.
        unsupported: the reason why this hardware cannot run it; otherwise empty.
    """

    reports: list[pytest.TestReport]
    results: list[CaseResult] = field(default_factory=list)
    broken: str = ""
    unsupported: str = ""


def merge(item: pytest.Item, ended: Ended, ranks: int) -> Merged:
    """The test's reports and results, merged from those of `ranks` ranks."""
    reports = {rank: _decoded(item.config, outcome) for rank, outcome in ended.whole.items()}
    phases = [_phase(item, when, reports, ended, ranks) for when in PHASES]
    shown = [report for report in phases if report is not None]
    if ended.lost is not None:
        text = describe_lost(ended, ended.lost, ranks)
        cause = text.splitlines()[0]
        failed = next((report for report in shown if report.failed), None)
        if failed is None:
            failed = failed_report(item.nodeid, item.location, text)
            shown = [report for report in shown if report.when == "setup"] + [failed]
        else:  # The error of the rank that has left the test is the cause. The others only wait for it.
            cause = f"{cause}; {_message(failed)}"
            _add(failed, text)
        setattr(failed, OTHERWISE, True)
        return Merged(shown, broken=cause)
    outcomes = [ended.outcomes[rank] for rank in range(ranks)]
    raised = [rank for rank, outcome in enumerate(outcomes) if outcome.broken]
    return Merged(
        shown,
        merge_ranks([outcome.results for outcome in outcomes]),
        f"{outcomes[raised[0]].broken} (on {ranks_of(raised, ranks)})" if raised else "",
        next((outcome.unsupported for outcome in outcomes if outcome.unsupported), ""),
    )


def decoded_report(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A report that was sent as JSON, which has no tuples. The copy is needed because pytest changes its argument."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=copy.deepcopy(data))
    shown: Any = report.longrepr
    if isinstance(shown, list):
        report.longrepr = (shown[0], shown[1], shown[2])  # For a skipped test: its file, its line and the reason.
    return report


def _decoded(config: pytest.Config, outcome: RankOutcome) -> dict[str, pytest.TestReport]:
    return {report.when: report for report in (decoded_report(config, data) for data in outcome.reports)}


def _phase(
    item: pytest.Item, when: str, reports: Mapping[int, Mapping[str, pytest.TestReport]], ended: Ended, ranks: int
) -> pytest.TestReport | None:
    """The report of one phase: of the lowest rank that failed, else of one that was skipped, else of any."""
    having = {rank: own[when] for rank, own in reports.items() if when in own}
    if not having:
        return None
    failed = [rank for rank, report in having.items() if report.failed]
    skipped = [rank for rank, report in having.items() if report.skipped]
    shown = having[min(failed or skipped or having)]
    shown.duration = max(report.duration for report in having.values())
    if failed and ranks > 1:
        which = ranks_of(failed, ranks)
        others = _other_failures({rank: having[rank] for rank in failed})
        _add(shown, "\n".join([f"failed on {which}; shown: rank {min(failed)}", *others]), which)
    elif skipped and len(skipped) < len(having):
        text = f"skipped on {ranks_of(skipped, ranks)} only; every rank must make the same calls"
        failure = failed_report(item.nodeid, item.location, text, when)
        setattr(failure, OTHERWISE, True)
        return failure
    return shown


def _other_failures(failed: Mapping[int, pytest.TestReport]) -> list[str]:
    """A line for each rank whose failure differs from the first one's."""
    messages = {rank: _message(report) for rank, report in failed.items()}
    first = messages[min(messages)]
    return [f"rank {rank}: {message}" for rank, message in messages.items() if message != first]


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).partition("\n")[0]


def _add(report: pytest.TestReport, text: str, which: str = "") -> None:
    """Add a text below a failure, and the ranks (`which`) before its line in pytest's summary."""
    shown: Any = report.longrepr
    if hasattr(shown, "addsection"):
        shown.addsection("perfguard", text, "-")
        if which and shown.reprcrash is not None:
            shown.reprcrash.message = f"{which}: {shown.reprcrash.message}"
    else:
        report.longrepr = f"{shown}\n{text}"


def describe_lost(ended: Ended, lost: Lost, ranks: int) -> str:
    """The reason why ranks did not end a test: the cause in one line, each rank's position, stacks, and output."""
    if not lost.nodeid:
        ends = [f"rank {rank}: {how}" for rank, how in lost.exits.items()]
        return "\n".join([f"no rank began the tests: {'; '.join(ends) or 'the launch failed'}", lost.output])
    first = next(iter(lost.exits), None)
    exits = {rank: outcome.exit for rank, outcome in ended.outcomes.items() if outcome.exit is not None}
    waiting = {rank: rank_exit for rank, rank_exit in exits.items() if rank not in ended.whole}
    if waiting:
        lines = [_cause(ended, waiting, ranks)]
    elif first is not None:
        lines = [f"rank {first} of {ranks}: {lost.exits[first]} in the middle of the test"]
    else:
        lines = [lost.output.partition("\n")[0] or "the ranks ended in the middle of the test"]
    for rank in range(ranks):
        facts = [_issued(exits[rank])] if rank in exits else []
        if rank in ended.whole:
            facts.insert(0, _ended(ended.whole[rank]))
        elif rank in waiting:
            facts.insert(0, f"in {waiting[rank].step}")
        elif rank in lost.exits:
            facts.append(lost.exits[rank])
        lines.append(f"  rank {rank}: {'; '.join(facts) or 'left no report'}")
    for rank, rank_exit in waiting.items():
        lines += [f"stack of rank {rank}, the innermost call last:", rank_exit.stack.rstrip()]
    if first is not None and first not in exits and lost.output:
        lines += [f"last output of rank {first}:", lost.output]
    return "\n".join(lines)


def _cause(ended: Ended, waiting: Mapping[int, RankExit], ranks: int) -> str:
    """One line, which names the ranks that did not answer, have left the test, or are behind in their collectives."""
    cause = "; ".join(dict.fromkeys(rank_exit.cause for rank_exit in waiting.values()))
    collectives = {rank: rank_exit.collective for rank, rank_exit in waiting.items()}
    issued = {rank: collective.number if collective else 0 for rank, collective in collectives.items()}
    pending = {collective.name for collective in collectives.values() if collective and collective.pending}
    silent = [rank for rank in range(ranks) if rank not in waiting and rank not in ended.whole]
    behind = [rank for rank, number in issued.items() if number < max(issued.values())]
    if silent:
        return f"{cause}; {ranks_of(silent, ranks)} did not answer"
    if ended.whole and pending:
        return f"{cause}: {ranks_of(ended.whole, ranks)} did not come to {', '.join(sorted(pending))}"
    if behind:
        return f"{cause}: {ranks_of(behind, ranks)} did not come to {', '.join(sorted(pending)) or 'a collective'}"
    if len(pending) > 1:
        return f"{cause}: ranks wait in different collectives: {', '.join(sorted(pending))}"
    return cause


def _issued(rank_exit: RankExit) -> str:
    if rank_exit.collective is None:
        return "issued no collective"
    return f"{'waits in' if rank_exit.collective.pending else 'last collective:'} {rank_exit.collective.text}"


def _ended(outcome: RankOutcome) -> str:
    if outcome.broken:
        return outcome.broken
    worst = next((word for word in ("failed", "skipped") if word in outcome.phase_outcomes), "passed")
    return f"ended the test: {worst}"
