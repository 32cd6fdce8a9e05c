"""pytest's hooks in a process that is one of several ranks, the guard of its calls, and the watch over its tests.

All ranks run the same tests in the same order, and wait for each other at the end of each. In a launch by perfguard,
each rank writes its reports to a file for the parent. Under torchrun, rank 0 is the user's pytest, which merges the
reports of all ranks and judges; the other ranks print nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from perfguard._compat.pytest_internals import run_protocol
from perfguard.measure.devices import find_devices, open_device
from perfguard.measure.devices.device import Device
from perfguard.model.config import Config
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.pytest_plugin.failures import describe_error, raised_otherwise, usage_errors
from perfguard.pytest_plugin.fixture import OPENED, RUN
from perfguard.pytest_plugin.items import case_of, has_fixture, in_order, mark_of
from perfguard.pytest_plugin.start import build_config
from perfguard.ranks.launch import Collective, Ended, RankExit, RankOutcome, write_outcome
from perfguard.ranks.rank_group import END, RANK_GUARD, RankGroup, RankGuard, local_rank, meet, rank_here, ranks_here
from perfguard.ranks.rank_reports import decoded_report
from perfguard.ranks.ranked_items import RankedItems, replay
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.child import EVERYTHING, Request, read_request
from perfguard.session.watchdog import describe_step, watched

_STATUS = 3  # The exit status of a rank that ends itself is pytest's status for an internal error.
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5.0  # A rank whose peer has failed ends itself after this time.
_OTHERS_SECONDS = 10.0  # The other ranks have this time to write their state, before the launch ends them.
_WAITING_SECONDS = 2.0  # The time is shorter if the ranks wait for one that has failed, which writes no state.
_RUNNER = re.compile(r"[/\\](_pytest|pluggy)[/\\]")


def rank_runner(config: Config, device: Device, request: Request | None) -> Runner:
    """The runner that reads a rank's metrics. `request` is that of the launch, or None under torchrun."""
    exact_only = config.lane != "" and config.lane == device.identity.target
    return Runner(device, config.settings, ReadingPlan(request or EVERYTHING, exact_only))


class InRank:
    """The plugin that is registered in each rank.

    Args:
        measure: whether guarded calls are measured.
        request: the request of the launch, whose folder receives the rank's outcomes; None under torchrun.
    """

    def __init__(self, config: Config, *, measure: bool, request: Request | None = None) -> None:
        self._config = config
        self._measure = measure
        self._request = request
        self._folder = config.session_folder
        self._stderr = os.dup(2)
        self._item: pytest.Item | None = None  # The running test.
        self._outcome = RankOutcome("")
        self._guard: RankGuard | None = None
        self._watch: Watch | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """In a launch, keep only the requested tests, in the requested order."""
        if self._request is not None:
            items[:] = in_order(items, self._request.tests or ())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Join the other ranks, and compare the order of the tests, since another order would cause a deadlock."""
        mine = [item.nodeid for item in session.items if mark_of(item).ranks]
        if session.config.option.collectonly or not (mine or self._request):
            return
        with usage_errors():
            guard = self._joined(session.config)
        orders = guard.exchange("the order of tests", hashlib.sha256("\n".join(mine).encode()).hexdigest())
        if len(set(orders)) > 1:
            lists = guard.exchange("the tests", mine)
            raise pytest.UsageError(_other_order(lists))

    def _joined(self, config: pytest.Config) -> RankGuard:
        settings = self._config.settings
        device = _device_of_rank(settings.device)
        runner = rank_runner(self._config, device, self._request) if self._measure else None
        group = meet(device.torch_device, settings.case_minutes)
        guard = self._guard = RankGuard(*group, runner=runner, extra_seconds=settings.extra_seconds)
        guard.begin()
        self._watch = Watch(guard, self._write_exit, self._stderr)
        config.stash[RANK_GUARD], config.stash[OPENED] = guard, (device, settings)
        return guard

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test of several ranks, wait for the other ranks, and report the test."""
        if not mark_of(item).ranks:
            return None
        guard, watch = self._guard, self._watch
        assert guard is not None
        assert watch is not None
        config = item.config
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._item, self._outcome = item, RankOutcome(item.nodeid)
        self._write()
        guard.enter_test()
        with watch.over():
            reports = run_protocol(item, nextitem)
            outcome = self._outcome
            outcome.ended, outcome.results, outcome.unsupported = True, guard.results, guard.reason
            outcome.reports = [
                config.hook.pytest_report_to_serializable(config=config, report=each) for each in reports
            ]
            self._write()
            watch.arrive(failed=outcome.phase_outcomes != ["passed"] * 3)
            texts = guard.exchange(END, msgspec.json.encode(outcome).decode())  # The file has the same text.
        outcomes = {rank: msgspec.json.decode(text, type=RankOutcome) for rank, text in enumerate(texts)}
        if self._request is None:
            reports = self._agreed_reports(item, guard, outcomes)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        if len({tuple(each.phase_outcomes) for each in outcomes.values()}) > 1:
            guard.begin()  # Another rank may still wait in a collective of this test.
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _agreed_reports(
        self, item: pytest.Item, guard: RankGuard, outcomes: dict[int, RankOutcome]
    ) -> list[pytest.TestReport]:
        """The reports that rank 0 has merged. All ranks use them, so that each stops when rank 0 does (-x)."""
        hook, config = item.config.hook, item.config
        own = replay(item, Ended(outcomes)) if guard.rank == 0 else []
        data = [hook.pytest_report_to_serializable(config=config, report=report) for report in own]
        decided = guard.exchange("the reports", data)[0]
        return own or [decoded_report(config, report) for report in decided]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
        """Note why a test raised, as `Measuring` does without ranks."""
        report = yield
        error = raised_otherwise(report, call)
        if error is not None:
            self._outcome.broken = self._outcome.broken or describe_error(call.when, error)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Under torchrun, only rank 0 has the status of failed tests, because the agent blames each rank with one."""
        if self._request is None and rank_here() > 0 and session.exitstatus == ExitStatus.TESTS_FAILED:
            session.exitstatus = ExitStatus.PASSED

    def pytest_unconfigure(self) -> None:
        if self._guard is not None:
            self._guard.end()
        os.close(self._stderr)

    def _write(self) -> None:
        if self._folder is not None:
            write_outcome(self._folder, rank_here(), self._outcome)

    def _write_exit(self, rank_exit: RankExit) -> None:
        if self._folder is not None:
            self._outcome.exit = rank_exit
            self._write()
            return
        issued = "no collective" if rank_exit.collective is None else rank_exit.collective.text
        text = f"{rank_exit.cause}; rank {rank_here()}: in {rank_exit.step}; last issued: {issued}"
        os.write(self._stderr, f"perfguard: {self._outcome.nodeid}: {text}\n{rank_exit.stack}".encode())
        item = self._item
        run = None if item is None else item.config.stash.get(RUN, None)  # If calls are measured, rank 0 has a run.
        if item is not None and run is not None:
            run.broken(case_of(item), text)
            run.judge("a test of several ranks hung")
            run.save()


def _device_of_rank(name: str) -> Device:
    """The device of this rank: its own, or the CPU, which all ranks share.

    Raises:
        DeviceError: the device is absent.
        UsageError: there are fewer devices than ranks on this host.
    """
    names = list(find_devices(name))
    if len(names) == 1 and local_rank() > 0:
        device = open_device(names[0])
        if device.holds_cpu_tensors:
            return device
    if local_rank() >= len(names):
        raise UsageError(f"rank {rank_here()}: this host has {len(names)} devices for {name!r}; start as many ranks")
    return open_device(names[local_rank()])


def _other_order(lists: list[list[str]]) -> str:
    first = lists[0]
    rank, other = next((rank, each) for rank, each in enumerate(lists) if each != first)
    differing = [test for test in first if test not in other] + [test for test in other if test not in first]
    where = f"only one of them has {differing[0]}" if differing else "they have them in another order"
    return (
        f"ranks 0 and {rank} collected different tests: {where}; parameters and the order of tests must not depend on "
        "the rank, on time or on chance"
    )


@dataclass
class Watch:
    """Ends this rank if its test hangs, or if it still waits for a rank that has failed the test.

    Such a rank cannot be interrupted, because it waits inside a collective. It writes its position and ends itself.
    Then the launch ends the other ranks.

    Args:
        write_exit: called with the rank's exit before the process ends.
        stderr: file descriptor for the stack of a rank whose watching thread cannot run.
    """

    group: RankGroup
    write_exit: Callable[[RankExit], None]
    stderr: int
    _number: int = 0
    _arrived: bool = False
    _failed_at: float = math.inf  # Seconds after which another rank was seen to have failed.

    @contextlib.contextmanager
    def over(self) -> Iterator[None]:
        """Watch the body: one test, and the wait for the other ranks at its end."""
        self._number += 1
        self._arrived, self._failed_at = False, math.inf
        main, store = threading.get_ident(), self.group.store.clone()
        limit = f"took longer than {self.group.minutes:g} minutes"
        # If C code never releases the interpreter's lock, the watching thread cannot run.
        seconds = 60 * self.group.minutes + 2 * _OTHERS_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.stderr)
        try:
            with watched(
                self.group.minutes,
                lambda step: self._end(main, store, limit, _OTHERS_SECONDS),
                _POLL_SECONDS,
                lambda step, seconds: self._look(main, store, seconds),
                first=_POLL_SECONDS,
            ):
                yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def arrive(self, failed: bool) -> None:
        """Note that this rank has ended the test and waits for the others. With `failed` it has left the test early, so
        that others may wait for it in a collective."""
        self._arrived = True
        if failed:
            self.group.store.set(f"failed-{self._number}", str(self.group.rank))

    def _look(self, main: int, store: Any, seconds: float) -> None:
        """End this rank if it still waits some time after another one has failed."""
        key = f"failed-{self._number}"
        if not self._arrived and self._failed_at == math.inf and store.check([key]):
            self._failed_at = seconds
        if not self._arrived and seconds - self._failed_at > _GRACE_SECONDS:
            self._end(main, store, f"rank {int(store.get(key))} had left the test", _WAITING_SECONDS)

    def _end(self, main: int, store: Any, cause: str, seconds: float) -> None:
        frame = sys._current_frames().get(main)
        try:
            self.write_exit(RankExit(cause, describe_step(frame), _stack(frame), last_collective()))
            keys = [f"exited-{rank}" for rank in range(self.group.ranks)]
            store.set(keys[self.group.rank], "")
            until = time.monotonic() + seconds
            while time.monotonic() < until and not store.check(keys):
                time.sleep(_POLL_SECONDS)
        finally:
            os._exit(_STATUS)


def last_collective() -> Collective | None:
    """The last collective that this rank has issued; None if none is known."""
    from perfguard._compat.torch_distributed import issued_collectives

    try:
        entries = issued_collectives()
    except Exception:  # The state is written even if this detail is missing.
        return None
    if not entries:
        return None
    entry = entries[-1]
    p2p = entry.get("is_p2p", False)
    return Collective(
        number=int(entry.get("p2p_seq_id" if p2p else "collective_seq_id", 0)),
        name=str(entry.get("profiling_name", "?")).partition(":")[2] or str(entry.get("profiling_name", "?")),
        sizes=str(entry.get("input_sizes", "")),
        group=str((entry.get("process_group") or ("", ""))[1]),
        pending=not entry.get("retired", False),
    )


def _stack(frame: FrameType | None) -> str:
    """The calls of a thread, without those of pytest."""
    frames = traceback.extract_stack(frame)
    last_own = max((at for at, each in enumerate(frames) if _RUNNER.search(each.filename)), default=-1)
    return "".join(traceback.format_list(frames[last_own + 1 :]))


# -- which process runs the tests --------------------------------------------------------------------------------------


_RANKS = "perfguard-ranks"


def start_rank(config: pytest.Config) -> bool:
    """Start a rank of a launch, or a rank that supports rank 0 under torchrun, which alone judges and prints. Other
    processes get False, and start as if there were no ranks."""
    if not config.option.perfguard_session:
        helps = ranks_here() > 0 and rank_here() > 0
        if helps:
            silence(config)
        return helps
    with usage_errors():
        request = read_request(Path(config.option.perfguard_session))
        if request.ranks:
            in_rank = InRank(build_config(config), measure=request.measure, request=request)
            config.pluginmanager.register(in_rank, _RANKS)
    return request.ranks > 0


def arrange(config: pytest.Config, items: list[pytest.Item], *, measure: bool) -> None:
    """Check the marks, and register the hooks for tests of several ranks.

    Such a test runs in the ranks of a launch. Under torchrun it runs here if its mark has the launch's number of ranks.
    Other guarded tests are then deselected, because all ranks would run them at once. A process that measures times for
    another process deselects tests of several ranks.

    Raises:
        UsageError: a mark has wrong arguments.
    """
    marks, here = {item: mark_of(item) for item in items}, ranks_here()
    needed = (here and measure) or any(mark.ranks for mark in marks.values())
    if config.pluginmanager.has_plugin(_RANKS) or not needed:
        return
    if config.option.perfguard_session:
        _keep(config, items, [item for item in items if not marks[item].ranks])
    elif here:
        foreign = {item for item in items if not (marks[item].ranks or has_fixture(item))}
        _keep(config, items, [item for item in items if marks[item].ranks == here or item in foreign])
        with usage_errors():
            built = build_config(config)
        config.pluginmanager.register(InRank(built, measure=measure), _RANKS)
        if rank_here():
            silence(config)
    else:
        config.pluginmanager.register(RankedItems(config), _RANKS)


def silence(config: pytest.Config) -> None:
    """Print nothing, in a rank other than 0 under torchrun."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.unregister(reporter)


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    chosen = set(kept)
    left_out = [item for item in items if item not in chosen]
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
