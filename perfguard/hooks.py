"""pytest's hooks of a measuring run: hold suspects back, confirm them at the end, summary, exit status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from perfguard import __version__
from perfguard.benchmark_fixture import benchmark_result
from perfguard.config import Config, parse_categories, read_settings
from perfguard.errors import ExitStatus, GuardFailure, PerfguardError, UsageError
from perfguard.guard import RUN, case_of, failure_lines, name_of, raise_for, suite_of
from perfguard.hardware import open_device
from perfguard.judge import exit_status
from perfguard.records import CaseResult
from perfguard.render.terminal import render_summary
from perfguard.run import Collected, Run, open_run
from perfguard.sessions import Command

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

FIXTURES = ("perfguard", "benchmark")
_NO_FAILURE = (pytest.skip.Exception, pytest.exit.Exception)


class Hooks:
    """Registered by `--perfguard`. One instance per pytest run."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._run: Run | None = None
        self._collected = Collected()
        self._held: dict[str, list[pytest.TestReport]] = {}
        self._failed_otherwise = False  # a test failed, and not by a verdict

    # -- collection ---------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]):  # type: ignore[no-untyped-def]
        """Note every guarded test before -k and -m deselect, so that deselected is not taken for gone."""
        for item in items:
            if _is_guarded(item):
                suite = suite_of(item.path, config.rootpath)
                self._collected.names.setdefault(suite, set()).add(name_of(item.nodeid))
        chosen = [argument for argument in config.args if "::" in argument]
        self._collected.whole = {
            suite_of(item.path, config.rootpath)
            for item in items
            if not any(argument.split("::")[0].endswith(item.path.name) for argument in chosen)
        }
        return (yield)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Open the device and the baselines, once it is known that they are needed."""
        guarded = [item for item in session.items if _is_guarded(item)]
        if not guarded or session.config.option.collectonly:
            return
        self._collected.selected = [case_of(item) for item in guarded]
        suites = sorted({suite_of(item.path, session.config.rootpath) for item in guarded})
        try:
            self._run = open_run(self._config, open_device(self._config.settings.device), suites, __version__)
        except PerfguardError as error:
            raise pytest.UsageError(str(error)) from error
        session.config.stash[RUN] = self._run

    # -- running ------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a guarded test; a suspect's reports wait until fresh processes have spoken."""
        run = self._run
        if run is None or not _is_guarded(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        problem = next((report for report in reports if report.failed), None)
        if problem is None and any(result.is_suspect for result in self._results(item.nodeid)):
            self._held[item.nodeid] = reports
        else:
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
        """A guarded test that raised before or inside the guarded call is BROKEN, with the step that raised."""
        if call.excinfo is not None and not call.excinfo.errisinstance((GuardFailure, *_NO_FAILURE)):
            self._failed_otherwise = True
        if self._run is not None and _is_guarded(item):
            error = call.excinfo
            if error is not None and not error.errisinstance((GuardFailure, *_NO_FAILURE)):
                reason = f"{call.when} raised {error.exconly(tryshort=True)}"
                self._run.broken(case_of(item), reason.splitlines()[0])
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        """Guard a test of pytest-benchmark's fixture on its host time, once its body is through."""
        answer = yield
        run = self._run
        result = benchmark_result(item, case_of(item)) if run is not None else None
        if run is not None and result is not None:
            judged = run.take(result)
            if not run.is_session:
                raise_for(run, [judged])
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session):  # type: ignore[no-untyped-def]
        """After the last test: fresh processes, stale entries, the update; then the held reports go out."""
        run = self._run
        try:
            answer = yield
            if run is not None and not session.config.option.collectonly:
                self._finish(session, run)
        finally:
            if run is not None:
                self._tell_held(session, run)
        return answer

    def _finish(self, session: pytest.Session, run: Run) -> None:
        reporter: TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")

        def progress(text: str) -> None:
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(f"perfguard: {text}")

        try:
            run.measure_again(_command(session.config), progress)
            run.finish(self._collected, progress)
        except PerfguardError as error:
            raise pytest.UsageError(str(error)) from error

    def _tell_held(self, session: pytest.Session, run: Run) -> None:
        held, self._held = self._held, {}
        for nodeid, reports in held.items():
            self._tell(session, run, nodeid, reports)

    def _tell(self, session: pytest.Session, run: Run, nodeid: str, reports: list[pytest.TestReport]) -> None:
        """Send a held test's reports, failed if the fresh processes confirmed the suspicion."""
        lines = failure_lines(run, self._results(nodeid))
        for report in reports:
            if report.when == "call" and lines:
                report.outcome = "failed"
                report.longrepr = "\n".join(lines)
            session.ihook.pytest_runtest_logreport(report=report)

    def _results(self, nodeid: str) -> list[CaseResult]:
        run = self._run
        return [] if run is None else [result for result in run.results.values() if result.case.nodeid == nodeid]

    # -- ending -------------------------------------------------------------------------------------------

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        run = self._run
        if run is None or run.is_session:
            return
        verbose = terminalreporter.config.option.verbose > 0
        summary = render_summary(
            run.snapshot(),
            written=[_relative(path, run) for path in run.written],
            left=[f"{change.describe()}: {why}" for change, why in run.left],
            verbose=verbose,
        )
        terminalreporter.section(f"perfguard: {summary.title}")
        for line in summary.lines:
            terminalreporter.write_line(line.text, **{line.color: True} if line.color else {})
        terminalreporter.write_line(f"report: {_relative(run.report_path, run)}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Tell apart why a run is not green; pytest's own statuses for interruption and misuse stand."""
        if exitstatus not in (ExitStatus.PASSED, ExitStatus.TESTS_FAILED) or self._config.session_folder:
            return
        results = [] if self._run is None else list(self._run.results.values())
        words = [
            verdict.word
            for result in results
            for verdict in result.verdicts
            if self._run is not None and not self._run.accepts(verdict)
        ]
        stale = [] if self._run is None else [verdict.word for verdict in self._run.remaining_stale]
        status = exit_status(
            [*words, *stale],
            strict=self._config.settings.strict,
            measured=sum(1 for result in results if result.readings),
            tests_failed=self._failed_otherwise,
        )
        session.exitstatus = int(status)


def _is_guarded(item: pytest.Item) -> bool:
    return any(name in getattr(item, "fixturenames", ()) for name in FIXTURES)


def _relative(path: object, run: Run) -> str:
    text = str(path)
    return text.removeprefix(f"{run.config.root}/")


def _command(config: pytest.Config) -> Command:
    """How fresh processes are started: as this one was, for other tests."""
    arguments = tuple(str(argument) for argument in config.invocation_params.args)
    positional = [str(argument) for argument in getattr(config.option, "file_or_dir", None) or []]
    if config.option.perfguard_update:
        positional.append(config.option.perfguard_update)
    extra = ("-n0",) if config.pluginmanager.hasplugin("xdist") else ()
    return Command(arguments, tuple(positional), config.invocation_params.dir, extra)


def start(config: pytest.Config) -> None:
    """Turn measuring on for this pytest run."""
    try:
        built = build_config(config)
    except PerfguardError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(Hooks(built), "perfguard-hooks")


def build_config(config: pytest.Config) -> Config:
    """The run's configuration from pytest's options and `[tool.perfguard]`.

    Raises:
        UsageError: an option or a setting that cannot be; also a measuring run spread over xdist workers.
    """
    option = config.option
    workers = getattr(option, "numprocesses", None)
    if workers:
        raise UsageError(
            f"-n {workers}: workers would time on one device at once and disturb each other; "
            "run pytest --perfguard without -n (numerics alone, without --perfguard, may use -n)"
        )
    update = None if option.perfguard_update is None else parse_categories(option.perfguard_update)
    if option.perfguard_reason and update is None:
        raise UsageError("--perfguard-reason: goes with --perfguard-update; add it or leave both out")
    return Config(
        root=config.rootpath,
        settings=read_settings(config.rootpath, device=option.perfguard_device, reports=option.perfguard_reports),
        measure=True,
        update=update,
        reason=option.perfguard_reason.strip(),
        session_folder=Path(option.perfguard_session) if option.perfguard_session else None,
    )
