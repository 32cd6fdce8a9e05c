"""pytest's hooks for tests of several ranks in the process that the user started. It makes one launch for each number
of ranks, and reports each test as if it had run here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perfguard._compat.pytest_internals import end_fixtures, worker_input
from perfguard.judge.across_ranks import merge_ranks
from perfguard.measure.devices import find_devices, open_device
from perfguard.model.errors import GuardFailure
from perfguard.model.units import counted
from perfguard.pytest_plugin.failures import usage_errors
from perfguard.pytest_plugin.fixture import RUN, raise_for
from perfguard.pytest_plugin.items import case_of, mark_of
from perfguard.pytest_plugin.progress import Progress
from perfguard.pytest_plugin.start import device_setting
from perfguard.ranks.launch import Ended, Launched
from perfguard.ranks.rank_reports import Merged, merge
from perfguard.session.child import ChildCommand, Request, child_command
from perfguard.session.child_process import session_of
from perfguard.session.device_lock import DeviceLock
from perfguard.session.run import Run
from perfguard.session.settle import to_record

_XFAIL_STRICT = "[XPASS(strict)]"


class RankedItems:
    """The plugin that is registered if tests are marked with `ranks=N` and this process is none of these ranks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._worker = worker_input(config) if hasattr(config, "workerinput") else None
        self._folder = _shared_folder(self._worker)
        self._device = device_setting(config)
        self._launches: dict[int, Launched] = {}
        self._lacks: dict[int, str] = {}
        self._locks: dict[str, DeviceLock] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Report a test of several ranks. The ranks make its fixtures. Here, earlier tests' fixtures end."""
        ranks = mark_of(item).ranks
        if not ranks or _is_skipped(item):  # pytest skips a test before its fixtures.
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        with usage_errors():
            lacking = self._lacking(ranks)
            self._hold_devices(item.session, ranks)
        for report in [_unsupported(item, lacking)] if lacking else replay(item, self._wait(item, ranks)):
            item.ihook.pytest_runtest_logreport(report=report)
        failed = end_fixtures(item, nextitem)
        if failed is not None:
            item.ihook.pytest_runtest_logreport(report=failed)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _wait(self, item: pytest.Item, ranks: int) -> Ended:
        launched = self._launches.get(ranks)
        if launched is None:
            for other in self._launches.values():
                other.join()  # Two launches at once would share the devices.
            items = [each for each in item.session.items if mark_of(each).ranks == ranks and not _is_skipped(each)]
            tests = [each.nodeid for each in items]
            request = Request(measure=RUN in self._config.stash, numerics=True)
            launched = Launched(self._folder / f"ranks-{ranks}", ranks, tests, self._command(), request)
            self._launches[ranks] = launched
        return launched.wait(item.nodeid)

    def _lacking(self, ranks: int) -> str:
        """The reason why this machine cannot run so many ranks; empty if it can, for example on the CPU."""
        if ranks not in self._lacks:
            names = list(find_devices(self._device))
            few = len(names) < ranks and not open_device(names[0]).holds_cpu_tensors
            self._lacks[ranks] = f"needs {ranks} devices, this machine has {len(names)}" if few else ""
            run = self._config.stash.get(RUN, None)
            if self._worker is not None and run is not None and not run.config.untimed and len(names) > 1:
                self._lacks[ranks] = f"needs {ranks} devices, on which other workers time; run it without -n"
        return self._lacks[ranks]

    def _hold_devices(self, session: pytest.Session, ranks: int) -> None:
        """Lock the devices of all ranks, in the order that every run uses. The run has already locked its own device.

        Raises:
            DeviceError: another process still holds a device after `lock_minutes`.
        """
        run = self._config.stash.get(RUN, None)
        keys = list(find_devices(self._device).values())
        if run is None or run.config.untimed or len(keys) < ranks or self._lacking(ranks):
            return
        for key in keys[:ranks]:
            if key != run.device.key and key not in self._locks:
                self._locks[key] = DeviceLock(key)
                self._locks[key].acquire(run.config.settings.lock_minutes, Progress(session.config, 2))

    def _command(self) -> ChildCommand:
        given = [str(argument) for argument in self._config.invocation_params.args]
        return child_command(given, self._config.invocation_params.dir, self._device)

    @pytest.hookimpl(wrapper=True, trylast=True)  # It ends before the run is settled.
    def pytest_runtestloop(self, session: pytest.Session):  # type: ignore[no-untyped-def]
        """Wait after the last test, because another worker may read this one's launches; stop them if the run ends
        early."""
        ended = False
        try:
            answer = yield
            ended = not (session.shouldstop or session.shouldfail)
        finally:
            for launched in self._launches.values():
                if ended:
                    launched.join()
                else:
                    launched.stop()
        run = self._config.stash.get(RUN, None)
        if ended and run is not None and run.config.update is not None:
            for ranks in self._launches:
                self._record(run, ranks, Progress(session.config, 2))
        return answer

    def _record(self, run: Run, ranks: int, tell: Callable[[str], None]) -> None:
        """Read the exact metrics that the update may write in another launch."""
        wanted = [result for result in to_record(run) if result.ranks == ranks and result.is_timed]
        tests = list(dict.fromkeys(result.case.nodeid for result in wanted))
        if not tests:
            return
        tell(f"another launch of {ranks} ranks: {counted(len(tests), 'test')}")
        request = Request(measure=True, times=False)
        again = Launched(self._folder / f"ranks-{ranks}-again", ranks, tests, self._command(), request)
        outcomes = [again.wait(test).whole for test in tests]
        again.join()
        whole = [[own[rank].results for rank in range(ranks)] for own in outcomes if len(own) == ranks]
        merged = [result for of_ranks in whole for result in merge_ranks(of_ranks)]
        run.fresh.append(session_of(merged, run.device.identity.index))

    def pytest_unconfigure(self) -> None:
        for lock in self._locks.values():
            lock.release()
        if self._worker is not None:  # The last worker that ends removes the folder.
            if not self._folder.is_dir():
                return
            (self._folder / f"left-{self._worker['workerid']}").touch()
            if len(list(self._folder.glob("left-*"))) < int(self._worker["workercount"]):
                return
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_skipped(item: pytest.Item) -> bool:
    """Whether a mark skips the test in every process. A `skipif` is left to the ranks, because its condition may hold
    in this process alone."""
    return item.get_closest_marker("skip") is not None


def _unsupported(item: pytest.Item, reason: str) -> pytest.TestReport:
    """The report of a test that lacks devices: skipped, and listed as UNSUPPORTED."""
    run = item.config.stash.get(RUN, None)
    if run is not None:
        run.unsupported(case_of(item), reason)
    path, line, _ = item.location
    where = (path, line or 0, f"Skipped: unsupported: {reason}")
    return pytest.TestReport(item.nodeid, item.location, {}, "skipped", where, "setup")


def replay(item: pytest.Item, ended: Ended) -> list[pytest.TestReport]:
    """The reports of a test that ranks have run. If this run measures, its results are judged here."""
    merged = merge(item, ended, mark_of(item).ranks)
    run = item.config.stash.get(RUN, None)
    if run is None:
        return merged.reports
    run.forget(item.nodeid)
    if merged.unsupported:
        run.unsupported(case_of(item), merged.unsupported)
    judged = [run.take(result) for result in merged.results]
    if merged.broken:
        run.broken(case_of(item), merged.broken)
    try:
        raise_for(run, judged)
    except GuardFailure as failure:
        _fail(merged, str(failure))
    return merged.reports


def _fail(merged: Merged, text: str) -> None:
    """Make a test fail by a verdict, which is reached after the test. If the test is expected to fail, this counts."""
    report = next((report for report in merged.reports if report.when == "call"), None)
    if report is None or (report.failed and not str(report.longrepr).startswith(_XFAIL_STRICT)):
        return  # The test has already failed for another reason.
    if report.failed:
        report.outcome, report.wasxfail = "skipped", str(report.longrepr).removeprefix(_XFAIL_STRICT).strip()
    elif report.skipped or hasattr(report, "wasxfail"):
        report.outcome = "skipped"
    else:
        report.outcome = "failed"
    report.longrepr = text


def _shared_folder(worker: dict[str, str] | None) -> Path:
    """The folder of all launches. All workers of a run of pytest-xdist share it."""
    if worker is None:
        return Path(tempfile.mkdtemp(prefix="perfguard-ranks-"))
    return Path(tempfile.gettempdir()) / f"perfguard-ranks-{os.getuid()}-{worker['testrunuid']}"
