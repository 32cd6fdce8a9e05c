"""pytest's hooks of a process that measures: the results of each test's call, then the times in question, and the
handling of faults."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import random
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.measure.devices import open_device
from perfguard.measure.devices.device import Device
from perfguard.model.config import Config
from perfguard.model.errors import ExitStatus, PerfguardError, is_out_of_memory
from perfguard.model.records import Case, Verdict, Word
from perfguard.model.suite_names import name_of, suite_of
from perfguard.pytest_plugin.ending import Ending, cut_short, failed_report, is_verbose
from perfguard.pytest_plugin.failures import describe_error, is_lost, raised_otherwise, usage_errors
from perfguard.pytest_plugin.fixture import LOST, RUN, benchmark_result, raise_for
from perfguard.pytest_plugin.items import case_of, check_names, has_fixture, in_order, is_guarded, mark_of
from perfguard.pytest_plugin.progress import Progress
from perfguard.session.child import ChildCommand, Request, child_command, read_request
from perfguard.session.device_lock import DeviceLock
from perfguard.session.run import Collected, Run
from perfguard.session.watchdog import stop_children, watched

if TYPE_CHECKING:
    from perfguard.session.pairing.worker import PairWorker

_ADDED = "__"  # Prefix of parameters that plugins give each test: pytest-repeat's --count, pytest-flakefinder.
_REPORT_SECONDS = 60.0  # Limit for the summary and JUnit after a hang; then the process ends.


class Inventory:
    """Notes the children of every collector before --lf, -k, node ids and other plugins choose among them."""

    def __init__(self) -> None:
        self._children: dict[pytest.Collector, list[pytest.Item | pytest.Collector]] = {}

    def note(self, collector: pytest.Collector, report: pytest.CollectReport) -> None:
        """Note the children that a collector returned. The list is copied, since --lf shortens the report's own."""
        if report.passed:
            self._children[collector] = list(report.result)

    def take(self, collected: Collected, items: Iterable[pytest.Item], root: Path) -> None:
        """Fill in the names of all guarded tests, and the suites whose tests are all known."""
        known = [child for children in self._children.values() for child in children if isinstance(child, pytest.Item)]
        for item in (*known, *items):
            if is_guarded(item):
                collected.names.setdefault(suite_of(item.path, root), set()).add(name_of(item.nodeid))
        parameters = {name for item in known for name in getattr(getattr(item, "callspec", None), "params", ())}
        if any(name.startswith(_ADDED) for name in parameters):
            return  # Tests then have other names, so no missing one counts as gone.
        # --lf returns no children for a file that it skips, so an empty file does not count as whole.
        files = [each for each, children in self._children.items() if isinstance(each, pytest.File) and children]
        collected.whole = {suite_of(file.path, root) for file in files if self._is_whole(file)}

    def _is_whole(self, collector: pytest.Collector) -> bool:
        """Whether all tests below it are known. Node ids can leave out classes, whose tests are then unknown."""
        children = self._children.get(collector)
        return children is not None and all(
            self._is_whole(child) for child in children if isinstance(child, pytest.Collector)
        )


class Measuring(Ending):
    """Registered by `--perfguard`. One instance per pytest run.

    Args:
        stderr: file descriptor of the process's own stderr, behind pytest's capture.
    """

    def __init__(self, config: Config, stderr: int) -> None:
        super().__init__(config)
        self._stderr = stderr
        self._collected = Collected()
        self._inventory = Inventory()
        folder = config.session_folder
        self.request = None if folder is None else read_request(folder)  # None: this process has no parent.
        self.worker: PairWorker | None = None  # This process in a process pair.
        if self.request is not None and self.request.pair is not None:
            from perfguard.session.pairing.worker import join

            self.worker = join(self.request)
        self._uncollected: dict[str, str] = {}
        self._lock: DeviceLock | None = None
        self._shown_progress: Progress | None = None
        self._ran_out = False  # Whether the running test ran out of memory.
        self._set_up: set[str] = set()  # Ids of the tests that have begun.

    # -- collection ---------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(self, collector: pytest.Collector):  # type: ignore[no-untyped-def]
        """Note the tests of a file before other plugins, such as --lf, remove some."""
        report = yield
        self._inventory.note(collector, report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]):  # type: ignore[no-untyped-def]
        """Note every guarded test before -k and -m deselect, so that a deselected test does not count as gone."""
        self._inventory.take(self._collected, items, config.rootpath)
        answer = yield
        if self.request is not None:
            all_items, items[:] = list(items), _requested(self.request, items)
            kept = set(items)
            config.hook.pytest_deselected(items=[item for item in all_items if item not in kept])
        return answer

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note the files that could not be collected, for the comparison of this process with another."""
        if report.failed:
            self._uncollected[report.nodeid] = (str(report.longrepr).strip().splitlines() or ["failed"])[-1]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Open the device and the baselines if any test needs them."""
        device = None
        if self.worker is not None:
            tests = self.worker.begin([item.nodeid for item in session.items])
            session.items[:] = in_order(session.items, tests)
            device = self._open(session)  # Opening takes seconds, so all sides do it at once, before any has its turn.
            device.settle()
            forget_compiled()  # The first call takes seconds, too.
        guarded = [item for item in session.items if is_guarded(item)]
        if not guarded or session.config.option.collectonly:
            return
        with usage_errors():
            check_names(guarded)
        self._collected.selected = [case_of(item) for item in guarded]
        # Observed tests need no device before they load torch, if they ever do.
        if any(map(has_fixture, guarded)) or "torch" in sys.modules:
            self._begin(session, device)

    def run_of(self, session: pytest.Session) -> Run:
        """The run, for a test that has loaded torch."""
        if self._run is None:
            self._begin(session, None)
        assert self._run is not None
        return self._run

    def _begin(self, session: pytest.Session, device: Device | None) -> None:
        from perfguard.session.open_run import open_run

        suites = sorted({case.suite for case in self._collected.selected})
        if self.request is None and self._config.settings.lanes:
            from perfguard.store.comment_limits import outgrown

            for line in outgrown(self._collected.selected, self._config):
                self._progress(session.config)(f"warning: {line}")
        device = device or self._open(session)
        with usage_errors():
            self._take(device.key, session)
            if self.worker is not None:
                self.worker.take_pad(device)
            self._run = open_run(
                self._config, device, suites, self._collected.selected,
                command=self._command(session.config) if self.worker is None else None,
                request=self.request, worker=self.worker,
            )  # fmt: skip
            times = self.request is None or (self.request.cold or self.request.profiled) is None
            if self.worker is None and times:  # Settling would count in a cold start, and uses the device's profiler.
                device.settle()
        session.config.stash[RUN] = self._run

    def _open(self, session: pytest.Session) -> Device:
        with usage_errors():
            return open_device(self._config.settings.device)

    def _progress(self, config: pytest.Config) -> Progress:
        if self._shown_progress is None:
            self._shown_progress = Progress(config, self._stderr)
        return self._shown_progress

    def _command(self, config: pytest.Config) -> ChildCommand:
        """The command for child processes: this process's own, on its device."""
        given = [str(argument) for argument in config.invocation_params.args]
        return child_command(given, config.invocation_params.dir, self._config.settings.device)

    def _take(self, key: str, session: pytest.Session) -> None:
        """Lock the device; fresh processes measure under their parent's lock."""
        alone = key != "cpu" or any(map(has_fixture, session.items))  # On a CPU only a fixture times.
        if self._config.session_folder is None and not self._config.untimed and alone:
            self._lock = DeviceLock(key)
            self._lock.acquire(self._config.settings.lock_minutes, self._progress(session.config))

    def pytest_unconfigure(self) -> None:
        if self._lock is not None:
            self._lock.release()
        if self._run is not None:
            self._run.device.close()
        os.close(self._stderr)

    # -- running ------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        """Watch a guarded test, and free its device memory if it ran out of memory."""
        run = self._run
        if run is None or not _is_guarded_here(item) or LOST in item.config.stash:
            return (yield)
        if self.worker is not None:
            self.worker.enter(item.nodeid)
        settings = self._config.settings
        # A worker of a process pair waits for its turns inside the test, so the parent limits the whole process.
        minutes = settings.case_minutes if self.worker is None else settings.session_minutes
        progress = self._progress(item.config)
        every = math.inf if run.is_session else progress.every
        with (
            watched(minutes, lambda step: self._hung(item, step), every, partial(self._seen, item)),
            run.device.aside(),
        ):
            answer = yield
        progress.clear()
        if self._ran_out:
            self._ran_out = False
            _forget_last_error()
            run.device.free_memory()
        return answer

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip measuring on a lost device. A test that runs again is judged again."""
        lost = item.config.stash.get(LOST, None)
        if self._run is not None and not self._run.is_session and item.nodeid in self._set_up:
            self._run.forget(item.nodeid)
        self._set_up.add(item.nodeid)
        if self._run is not None and lost is not None and _is_guarded_here(item):
            reason = f"not measured: the device was lost in {lost}; mend that case first"
            self._run.broken(case_of(item), reason)
            pytest.fail(reason, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
        """Mark a guarded test that raised before or inside the guarded call as BROKEN, with the step that raised. Skips
        and expected failures are not BROKEN: `Run.finish` lists the cases that they leave unmeasured."""
        report = yield
        error, run = raised_otherwise(report, call), self._run
        if error is not None and run is not None and _is_guarded_here(item):
            reason = describe_error(call.when, error)
            self._ran_out |= is_out_of_memory(error.value)
            if LOST not in item.config.stash and is_lost(run.device):
                item.config.stash[LOST] = f"{item.nodeid} ({reason})"
                reason += "; the device is lost to this process"
            try:
                run.broken(case_of(item), reason)
            except PerfguardError as problem:  # Nothing can be saved any more, for example on a full disk.
                pytest.exit(str(problem), returncode=ExitStatus.USAGE_ERROR)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        """Guard the host time of a test with pytest-benchmark's fixture, after its body."""
        answer = yield
        run = self._run
        if run is None or run.report.exact_only or not has_fixture(item):
            return answer
        case = case_of(item)
        if "perfguard" in getattr(item, "fixturenames", ()):  # The fixture's own call is the case without a label.
            case = case.labelled("benchmark")
        result = benchmark_result(item, case)
        if result is not None:
            judged = run.take(result)
            if not run.is_session:
                raise_for(run, [judged])
        return answer

    def _seen(self, item: pytest.Item, step: str, seconds: float) -> None:
        """Show the progress of a long test, on the watchdog's thread."""
        which = f"{item.name} ({len(self._set_up)} of {item.session.testscollected})"
        self._progress(item.config).look(f"{which}: {step}", seconds)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Clear the progress line before pytest writes to its terminal."""
        if self._shown_progress is not None:
            self._shown_progress.clear()
        super().pytest_runtest_logreport(report)

    def pytest_enter_pdb(self, config: pytest.Config) -> None:
        """Leave the terminal to the debugger."""
        self._progress(config).clear()
        self._progress(config).quiet = True

    def pytest_leave_pdb(self, config: pytest.Config) -> None:
        self._progress(config).quiet = False

    def _hung(self, item: pytest.Item, step: str) -> None:
        """Report a hanging test, save the results and end the process, on the watchdog's thread."""
        run = self._run
        assert run is not None
        faulthandler.dump_traceback_later(_REPORT_SECONDS, exit=True, file=self._stderr)
        status = int(ExitStatus.INTERNAL_ERROR)
        try:
            faulthandler.dump_traceback(self._stderr)
            limit = f"{self._config.settings.case_minutes:g} minutes"
            reason = f"took longer than {limit}, in {step}; mend it, or raise case_minutes in [tool.perfguard]"
            run.add_verdict(case_of(item), Verdict(Word.BROKEN, reason=reason))
            cut_short(run, self._here(), f"{item.nodeid} took longer than {limit} and ended the run")
            run.save()
            os.write(self._stderr, f"perfguard: {item.nodeid}: {reason}\n".encode())
            status = self._report_end(item, run, reason)
        finally:
            stop_children()
            sys.stdout.flush()
            os._exit(status)

    def _here(self) -> list[Case]:
        """The tests that are not run if this process ends."""
        return self._collected.selected

    def _report_end(self, item: pytest.Item, run: Run, reason: str) -> int:
        """Write reports and summary as at the end of a run, and return the exit status."""
        if run.is_session:
            return int(ExitStatus.INTERNAL_ERROR)
        config, session = item.config, item.session
        capture = config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        report = failed_report(item.nodeid, item.location, reason)
        item.ihook.pytest_runtest_logreport(report=report)
        session.exitstatus = ExitStatus.TESTS_FAILED
        # pytest's own hook is left out: it tears fixtures down and may wait for the device.
        others = [config.pluginmanager.get_plugin("runner")]
        finish = config.pluginmanager.subset_hook_caller("pytest_sessionfinish", remove_plugins=others)
        finish(session=session, exitstatus=session.exitstatus)
        return int(session.exitstatus)

    # -- ending -------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session):  # type: ignore[no-untyped-def]
        """After the last test: settle times in question, find stale entries, update."""
        run = self._run
        try:
            answer = yield
        except BaseException:  # After -x or Ctrl-C no process pairs run.
            if run is not None and not run.is_session:
                cut_short(run, self._here(), "the run was cut short")
                with contextlib.suppress(PerfguardError):  # A full disk may be what cut it short.
                    run.save()
            raise
        if run is not None and not session.config.option.collectonly:
            try:
                self._finish(session, run)
            finally:
                self._tell_junit(session.config)
        if self.worker is not None:
            self.worker.leave()
        return answer

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End as any run does. A child that runs a base also writes its launches, even if it collected no test."""
        folder, request = self._config.session_folder, self.request
        if folder is not None and request is not None and request.follow is not None:
            from perfguard.session.pairing.worker import write_followed

            followed = {} if self._run is None else self._run.runner.followed
            write_followed(folder, request, followed, self._uncollected)
        super().pytest_sessionfinish(session, exitstatus)

    def _finish(self, session: pytest.Session, run: Run) -> None:
        from perfguard.session.settle import settle

        tell = self._progress(session.config)
        with usage_errors():
            with tell.after_tests():
                settle(run, self._command(session.config), tell)
            run.finish(self._collected, self._outcomes, tell, verbose=is_verbose(session.config))


def _is_guarded_here(item: pytest.Item) -> bool:
    """Whether this process runs the guarded test alone: tests of several ranks have hooks of their own."""
    return has_fixture(item) and not mark_of(item).ranks


def _requested(request: Request, items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that a child runs, in their order."""
    kept = items if request.tests is None else in_order(items, request.tests)
    if request.shuffle:
        guarded = [item for item in kept if is_guarded(item)]
        kept = random.SystemRandom().sample(guarded, len(guarded))
    return kept


def _forget_last_error() -> None:
    """Forget the last traceback, which pytest and Python keep for debuggers, with every tensor on its stack."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
