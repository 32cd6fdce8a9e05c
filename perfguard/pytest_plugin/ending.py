"""The end of a measuring run: summary, JUnit, exit status. For one process and for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from perfguard._compat.pytest_internals import junit_log
from perfguard.judge.run_verdicts import exit_status
from perfguard.model.config import Config
from perfguard.model.errors import ExitStatus
from perfguard.model.records import URGENCY, Case, CaseResult, Verdict, Word
from perfguard.model.records.case import is_inconclusive, words_of
from perfguard.pytest_plugin.failures import OTHERWISE, PHASES
from perfguard.pytest_plugin.fixture import failure_lines

if TYPE_CHECKING:
    from perfguard._compat.pytest_internals import TerminalReporter
    from perfguard.session.run import Run

Location = tuple[str, int | None, str]

_NOWHERE: Location = ("perfguard", None, "")  # The place of a failure outside the test's own code.
_NOTHING_WRITTEN = "all baselines: the run was interrupted; record again"


class Ending:
    """The hooks that both kinds of run share. Subclasses set `_run` once cases are known."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._run: Run | None = None
        self._failed_otherwise = False
        self._outcomes: dict[str, str] = {}  # node id -> reason why its test did not run to its end; empty if it did

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed_otherwise |= report.failed and bool(getattr(report, OTHERWISE, False))
        if report.failed or report.skipped or (report.passed and report.when == "call"):
            self._outcomes[report.nodeid] = _why_not(report)

    @property
    def run(self) -> Run | None:
        """The run, once cases are known and a device is open."""
        return self._run

    def _results(self, nodeid: str) -> list[CaseResult]:
        run = self._run
        return [] if run is None else [result for result in run.results.values() if result.case.nodeid == nodeid]

    def _late(self, run: Run, result: CaseResult) -> CaseResult | None:
        """The case with the failing verdicts that pytest has not reported; None if there are none. A test that raised
        has a report of its own."""
        late = run.judged_late(result)
        if late is None or not self._outcomes.get(result.case.nodeid):
            return late
        verdicts = [verdict for verdict in late.verdicts if verdict.word is not Word.BROKEN]
        return replace(late, verdicts=verdicts) if verdicts else None

    def _tell_junit(self, config: pytest.Config) -> None:
        """Report late verdicts in `--junitxml`, each case as a test case of class `perfguard`."""
        run, log = self._run, junit_log(config)
        if run is None or log is None:
            return
        for result in run.results.values():
            lines = failure_lines(run, [late]) if (late := self._late(run, result)) is not None else []
            if lines:
                report = failed_report(f"perfguard::{result.case.key}", _NOWHERE, "\n".join(lines))
                log.node_reporter(report).add_attribute("name", result.case.key)  # pytest splits node ids.
                log.pytest_runtest_logreport(report)
                log.finalize(report)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        run = self._run
        if run is None or run.is_session:
            return
        from perfguard.render.terminal import render_summary
        from perfguard.render.update_text import describe_left

        verbose = is_verbose(terminalreporter.config)
        report = run.snapshot()
        left = describe_left(run.left, verbose)
        if self._config.update is not None and not report.complete:
            left.append(_NOTHING_WRITTEN)
        summary = render_summary(
            report,
            written=[_relative(path, run) for path in run.written],
            left=left,
            accepted=lambda verdict: bool(run.written) and run.accepts(verdict),
            typed=run.config.typed,
            verbose=verbose,
        )
        terminalreporter.section(f"perfguard: {summary.title}")
        for line in summary.lines:
            terminalreporter.write_line(line.text, **{line.color: True} if line.color else {})
        terminalreporter.write_line(f"report: {_relative(run.report_path, run)}")
        self._count(run, terminalreporter.stats)

    def _count(self, run: Run, stats: dict[str, list[Any]]) -> None:
        """Make pytest's last line agree with the exit status: a test whose case failed after it had passed counts as
        failed, and a test of an inconclusive run as inconclusive."""
        late = {result.case.nodeid for result in run.results.values() if self._late(run, result) is not None}
        late = {nodeid for nodeid in late if any(run.failing(each) for each in self._results(nodeid))}
        passed = {getattr(report, "nodeid", "") for report in stats.get("passed", [])}
        if late := late & passed:
            stats["passed"] = [each for each in stats["passed"] if getattr(each, "nodeid", "") not in late]
            for nodeid in sorted(late):
                word = min((result.word for result in self._results(nodeid)), key=URGENCY.__getitem__)
                stats.setdefault("failed", []).append(failed_report(nodeid, _NOWHERE, word))
        elif self._config.update is None and is_inconclusive(list(run.results.values())):
            # Other plugins read the reports of all kinds.
            stats["inconclusive"] = [
                failed_report(result.case.nodeid, _NOWHERE, result.word)
                for result in run.results.values()
                if result.word is Word.UNRESOLVED
            ]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit status by the cause of failure; pytest's own statuses for interruption and misuse stay."""
        own = exitstatus not in (ExitStatus.PASSED, ExitStatus.TESTS_FAILED)
        if own or session.config.option.collectonly or self._config.session_folder:
            return
        results: list[CaseResult] = []
        words: list[Word] = []
        if (run := self._run) is not None:
            results = list(run.results.values())
            words = [verdict.word for verdict in run.remaining_stale]
            for result in results:
                words += words_of(result, [each for each in result.verdicts if not run.accepts(each)])
        status = exit_status(
            words,
            strict=self._config.settings.strict,
            measured=sum(1 for result in results if result.readings),
            tests_failed=self._failed_otherwise,
            inconclusive=self._config.update is None and is_inconclusive(results),
        )
        if status != ExitStatus.PASSED:  # A failure that no verdict explains stays one.
            session.exitstatus = int(status)


def _why_not(report: pytest.TestReport) -> str:
    """The reason why a test did not run to its end; empty if it did."""
    if report.skipped and hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}".removesuffix(": ")
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return f"skipped: {reason.removeprefix('Skipped: ')}".removesuffix(": ")
    if not report.failed:
        return ""
    if report.when not in PHASES:  # Some plugins run a test in a process of its own.
        return "not finished: its process ended"
    return f"not finished: it failed in its {report.when}"


def failed_report(nodeid: str, location: Location, text: str, when: str = "call") -> pytest.TestReport:
    """A report of a failure without an exception in the test's own code."""
    return pytest.TestReport(nodeid, location, {}, "failed", text, when)  # type: ignore[arg-type]


def is_verbose(config: pytest.Config) -> bool:
    """Whether `-v` was given, an option that is missing without pytest's own terminal plugin."""
    return bool(config.getoption("verbose", 0) > 0)


def cut_short(run: Run, selected: list[Case], why: str) -> None:
    """Add verdicts for times without process pairs and for tests not reached, after an early end."""
    run.judge(why)
    reached = {result.case.nodeid for result in run.results.values()}
    for case in selected:
        if case.nodeid not in reached:
            run.add_verdict(case, Verdict(Word.UNRESOLVED, reason=f"not measured: {why}"))


def _relative(path: object, run: Run) -> str:
    return str(path).removeprefix(f"{run.config.root}/")
