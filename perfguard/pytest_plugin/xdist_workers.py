"""`pytest --perfguard -n 2`: one worker per GPU, each on a device of its own, and one judgement of all.

The controlling process gives each worker a folder. A worker is a measuring run like any other, up to the process pairs
for the times in question on its device, the first that is free. It writes into its folder its report after every case
and its collected tests. The controlling process merges these and ends the run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from perfguard._compat.pytest_internals import worker_input
from perfguard.measure.devices import find_devices, open_device
from perfguard.measure.devices.device import Device
from perfguard.model.atomic_files import make_folder, write_atomically
from perfguard.model.config import Config
from perfguard.model.errors import PerfguardError
from perfguard.model.records import Case, Pairing, Report, Verdict, Word
from perfguard.pytest_plugin.ending import Ending, cut_short, is_verbose
from perfguard.pytest_plugin.failures import usage_errors
from perfguard.pytest_plugin.measuring_run import Measuring
from perfguard.pytest_plugin.progress import Progress
from perfguard.session.device_lock import DeviceLock, acquire_any
from perfguard.session.open_run import open_run
from perfguard.session.run import Collected, Run
from perfguard.session.settle import settle
from perfguard.store.report_file import read_report

FOLDER = "perfguard_folder"  # The key of a worker's folder in its input.
_STATE = "state.json"
_CRASHED = "???"  # xdist's phase of a test in which its worker crashed.


class WorkerState(Struct):
    """What a worker leaves in its folder, beside its report.

    Attributes:
        collected: its collection, which is the same in all workers.
        error: the error that stops the run; otherwise empty.
        reported: suite, key and verdicts of the cases whose tests reported them.
    """

    collected: Collected
    error: str = ""
    reported: list[tuple[str, str, list[Verdict]]] = []


class XdistWorker(Measuring):
    """In an xdist worker: measures on a device of its own, and leaves the end of the run to the controlling process."""

    def __init__(self, config: Config, stderr: int) -> None:
        super().__init__(config, stderr)
        self._state = WorkerState(self._collected)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin as in one process; the controlling process reports any error."""
        try:
            super().pytest_collection_finish(session)
        except pytest.UsageError as error:
            self._state.error = str(error)
        self._write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Set up as in one process; after an error no test runs."""
        if error := self._state.error:
            item.session.shouldstop = error
            pytest.fail(error, pytrace=False)
        super().pytest_runtest_setup(item)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Do nothing: the controlling process ends the run."""

    def _open(self, session: pytest.Session) -> Device:
        """Open a device that no other process uses. Without times, workers may share devices."""
        settings = self._config.settings
        with usage_errors():
            devices = find_devices(settings.device)
            name = [*devices][_number(session.config) % len(devices)]
            if not self._config.untimed:
                locks = {DeviceLock(key): each for each, key in devices.items()}
                self._lock = acquire_any([*locks], settings.lock_minutes, self._progress(session.config))
                name = locks[self._lock]
            settings = msgspec.structs.replace(settings, device=name)
            self._config = msgspec.structs.replace(self._config, settings=settings)
            return open_device(name)

    def _take(self, key: str, session: pytest.Session) -> None:
        """Do nothing: the device is locked already."""

    def _here(self) -> list[Case]:
        return []  # Another worker takes over the remaining tests.

    def _report_end(self, item: pytest.Item, run: Run, reason: str) -> int:
        return 1

    def _finish(self, session: pytest.Session, run: Run) -> None:
        tell = self._progress(session.config)
        try:
            with tell.after_tests():
                settle(run, self._command(session.config), tell)
        except PerfguardError as error:
            self._state.error = str(error)
        run.report = msgspec.structs.replace(run.report, copy_bytes_per_second=run.runner.copy_bytes_per_second)
        run.save()
        self._state.reported = [(*case, verdicts) for case, verdicts in run.reported.items()]
        self._write()

    def _write(self) -> None:
        write_atomically(self._config.reports_dir / _STATE, msgspec.json.encode(self._state, enc_hook=str))


class Controller(Ending):
    """In the process that starts the workers: merges the results, judges the run."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._folder: Path | None = None
        self._crashed: list[str] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Make the folder of the workers before xdist starts them (it does so last)."""
        if not session.config.option.collectonly:
            with usage_errors():
                make_folder(self._config.reports_dir)
            self._folder = Path(tempfile.mkdtemp(prefix="workers-", dir=self._config.reports_dir)).absolute()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a starting worker its folder."""
        assert self._folder is not None
        node.workerinput[FOLDER] = str(self._folder / node.workerinput["workerid"])

    def pytest_unconfigure(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- results ------------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        super().pytest_runtest_logreport(report)
        if report.when == _CRASHED:
            self._crashed.append(report.nodeid)
            self._failed_otherwise = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session):  # type: ignore[no-untyped-def]
        """After the last worker: merge all results into one run."""
        ended = False
        try:
            answer = yield
            ended = True
        finally:
            if self._folder is not None:
                self._gather(session, self._folder, ended)
                self._tell_junit(session.config)
        return answer

    def _gather(self, session: pytest.Session, folder: Path, ended: bool) -> None:
        workers = sorted(path for path in folder.iterdir() if path.is_dir())
        paths = [path for worker in workers if (path := worker / _STATE).exists()]
        states = [msgspec.json.decode(path.read_bytes(), type=WorkerState) for path in paths]
        error = next((state.error for state in states if state.error), None)
        if error is not None:
            raise pytest.UsageError(error)
        reports = [read_report(path) for worker in workers for path in worker.glob("report-*.json")]
        collected = next((state.collected for state in states), None)
        if collected is None or not collected.selected:
            return
        with usage_errors():
            run = self._run = self._merged(reports, collected)
            for suite, key, verdicts in (each for state in states for each in state.reported):
                run.reported[suite, key] = verdicts
            self._name_crashed(run, collected.selected)
            cut_short(run, [] if ended else collected.selected, "its worker ended before")
            if ended:
                run.finish(collected, self._outcomes, Progress(session.config, 2), verbose=is_verbose(session.config))
            else:
                run.save()

    def _merged(self, reports: list[Report], collected: Collected) -> Run:
        """One run with the results of all workers, in the order of the tests.

        Raises:
            PerfguardError: the devices are of several kinds, or a baseline cannot be read.
        """
        slugs = sorted({report.hardware.slug for report in reports})
        if len(slugs) > 1:
            raise PerfguardError(
                f"-n: measured on {' and '.join(slugs)}, but one run guards one kind of device; "
                "leave only one kind visible, e.g. by CUDA_VISIBLE_DEVICES"
            )
        suites = sorted({case.suite for case in collected.selected})
        run = open_run(self._config, open_device(self._config.settings.device), suites, collected.selected)
        results = [result for report in reports for result in report.results]
        order = {case.nodeid: position for position, case in enumerate(collected.selected)}
        for result in sorted(results, key=lambda result: order.get(result.case.nodeid, len(order))):
            run.results[result.id] = result
            if any(verdict.word is Word.SUSPECT for verdict in result.verdicts):  # The worker ended early.
                run.measured[result.id] = msgspec.structs.replace(result, verdicts=[])
        run.pairings = _joined([pairing for report in reports for pairing in report.pairings])
        run.fresh = [session for report in reports for session in report.fresh]
        run.fresh_problem = "\n".join(report.fresh_problem for report in reports if report.fresh_problem)
        ceilings = [report.copy_bytes_per_second for report in reports if report.copy_bytes_per_second]
        run.runner.copy_bytes_per_second = min(ceilings, default=None)
        conditions = [condition for report in reports for condition in report.conditions]
        bases = {commit: tree for report in reports for commit, tree in report.bases.items()}
        run.report = msgspec.structs.replace(
            run.report, conditions=[*run.report.conditions, *conditions], bases=bases, base=reports[0].base
        )
        run.trees = None  # This process has loaded none of the code.
        return run

    def _name_crashed(self, run: Run, selected: Iterable[Case]) -> None:
        for case in selected:
            broken = any(result.word is Word.BROKEN for result in self._results(case.nodeid))
            if case.nodeid in self._crashed and not broken:
                run.add_verdict(case, Verdict(Word.BROKEN, reason="its process crashed while it ran; see above"))


def _number(config: pytest.Config) -> int:
    """The number of this worker."""
    return int(worker_input(config)["workerid"].removeprefix("gw"))


def _joined(pairings: Iterable[Pairing]) -> list[Pairing]:
    """One pairing for each base and device: workers of a run without times share a device, each with its cases."""
    joined: dict[tuple[str, int], Pairing] = {}
    for pairing in pairings:
        known = joined.get((pairing.base, pairing.device))
        joined[pairing.base, pairing.device] = pairing if known is None else msgspec.structs.replace(
            known, cases=[*known.cases, *pairing.cases], pairs=known.pairs + pairing.pairs,
            problem=known.problem or pairing.problem,
        )  # fmt: skip
    return list(joined.values())
