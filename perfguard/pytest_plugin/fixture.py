"""The fixture, which turns one call into a guarded case with seeded inputs, and the messages of failing tests.

Tests with pytest-benchmark's fixture are guarded unchanged, on their host time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn

import pytest

from perfguard._compat.pytest_internals import benchmark_rounds, uncaptured
from perfguard._compat.torch_compiler import TRACE_LOGGER, forget_compiled
from perfguard.interpreter.entry import interpreter_error, interpreting
from perfguard.interpreter.running import NotInterpreted
from perfguard.measure.compiled import settings
from perfguard.measure.devices import open_device, require_torch
from perfguard.model.call import ALONE, Call, Configurations, Hard, Layers, Ranks, Tolerance, Work
from perfguard.model.config import Settings, read_settings
from perfguard.model.errors import GuardFailure, Regression, UsageError, WrongResult, shown
from perfguard.model.records import Case, CaseResult, Word
from perfguard.pytest_plugin.arguments import check_options, clobbers_of, hard_of, layers_of, mutates_of, walk_of
from perfguard.pytest_plugin.failures import hide_own_frames
from perfguard.pytest_plugin.items import case_of, mark_of
from perfguard.session.call_stack import with_room

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from perfguard.measure.devices.device import Device
    from perfguard.session.run import Run

RUN = pytest.StashKey["Run"]()
OPENED = pytest.StashKey[tuple["Device", Settings]]()  # Set in a run that measures nothing, and in each rank.
LOST = pytest.StashKey[str]()  # Set once the device no longer answers this process: the case and the cause.


def seed_of(case: Case, purpose: str = "inputs") -> int:
    """A seed of the case alone, so that a new case does not change the inputs of others.

    Each purpose has its own. With one seed for all, incoming gradients would equal the inputs, and errors could cancel:
    the gradient of a scale-invariant function, for example, would be 0.
    """
    return int.from_bytes(hashlib.sha256(f"{case.suite}::{case.name} {purpose}".encode()).digest()[:4], "big")


class Guarded:
    """The `perfguard` fixture of one test."""

    def __init__(
        self,
        case: Case,
        device: Device,
        run: Run | None,
        every: bool = False,
        extra_seconds: float = 0.0,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self._case = case
        self._device = device
        self._run = run
        self._ranks = ranks
        self._every = every  # Whether all configurations are checked.
        self._extra_seconds = extra_seconds  # For derived inputs and configurations of a call that is only checked.
        self._labels: set[str] = set()
        forget_compiled()  # Otherwise the number and shapes of earlier tests decide what this one compiles.
        self._settings = settings()  # Later changes are the test's own.

    @property
    def device(self) -> torch.device:
        """The device for the inputs of the case."""
        return self._device.torch_device

    @property
    def rank(self) -> int:
        """This process's number among the test's ranks; 0 without others."""
        return self._ranks.rank

    @property
    def ranks(self) -> int:
        """Number of ranks of the test, or of its layout; 1 without the mark."""
        return self._ranks.ranks

    def mesh(self, **dimensions: int) -> DeviceMesh:
        """The ranks as a torch DeviceMesh, e.g. `perfguard.mesh(dp=2, tp=2)`: the last dimension varies fastest.

        Raises:
            UsageError: the product of the dimensions is not the number of ranks in the test's mark.
        """
        return self._ranks.mesh(dimensions)

    def unsupported(self, reason: str) -> NoReturn:
        """Declare that the case cannot run on this hardware: listed as UNSUPPORTED, and skipped."""
        self._ranks.unsupported(reason)
        if self._run is not None and not self._run.is_session:
            self._run.unsupported(self._case, reason)
        pytest.skip(f"unsupported on {self._device.identity.slug}: {reason}")

    def __call__(  # noqa: PLR0913  # The public call: each argument is documented, and all but `fn` go by name.
        self,
        fn: Callable[..., Any],
        *args: Any,
        reference: Callable[..., Any],
        tolerance: Tolerance | None = None,
        work: Work | None = None,
        kwargs: Mapping[str, Any] | None = None,
        mutates: tuple[int, ...] = (),
        clobbers: tuple[int | Literal["gradients"], ...] = (),
        timed: bool = True,
        cache: Literal["cold", "warm"] = "cold",
        cold_start: bool | Layers = False,
        walk: Sequence[Any] = (),
        configurations: Configurations = (),
        groups: Any = None,
        rival: Callable[..., Any] | None = None,
        hard: bool | Hard = True,
        label: str = "",
        **unknown: Never,
    ) -> None:
        """Guard `fn(*args, **kwargs)`: forward, and backward if an input requires grad.

        Args:
            fn: the candidate. It may not modify its inputs unless `mutates` or `clobbers` names them.
            args: its inputs; tensors on `perfguard.device`, also inside tuples, lists and dicts.
            reference: an eager implementation, callable with the same inputs in their own dtype and in the oracle's.
            tolerance: overrides of the numerics rule, with a reason.
            work: minimum bytes and flop of one call; turns time into GB/s, TFLOP/s and % of the copy ceiling.
            kwargs: keyword inputs of `fn` and `reference`.
            mutates: positions in `args` that the candidate writes; compared like outputs.
            clobbers: positions in `args` whose memory the candidate may overwrite, e.g. (0,) for a gradient in place,
                or (0, "gradients") if it overwrites the incoming gradients, too. Their contents are not compared
                afterwards.
            timed: False guards numerics and exact metrics only.
            cache: "cold": the last-level cache is evicted before each timed call; "warm": it is not.
            cold_start: True: separate processes, with empty and with kept compiler caches, measure the time to the
                first result and torch.compile's share of it. {1: build, 4: build_deeper}: the same for candidates with
                these numbers of layers, each built by a function without arguments; the cost of one more layer follows.
            walk: further inputs, e.g. other token counts and expert loads: each a tuple of arguments, a single tensor,
                or a function without arguments that prepares and returns one of these. Recompilations and tunings are
                counted over it; results are not checked.
            configurations: keyword arguments that each choose another configuration of the kernels, as
                [{"candidate": 0}, {"candidate": 1}], or a function that returns them for the device that the inputs
                report when it is called. They are checked by turns (docs/hard-inputs.md), and followed on every target.
                A kernel under triton.autotune needs none: its configurations are found. As {"width <= 512":
                {"candidate": 0}} they name the entries of a table, and the entry that the plain call takes is gated.
            groups: ends of the groups of rows (inclusive running ends, a tensor or numbers). Failures then name the
                group and its number of rows.
            rival: a function that the candidate has to beat, e.g. the eager function, a loop over the groups, or the
                kernel in its default configuration; called with the same inputs. Both are timed by turns in every run.
                A slower candidate is SLOWER, with or without a baseline. The rival's results are not checked.
            hard: whether the call must be right on inputs derived from its own (docs/hard-inputs.md); a Hard names the
                kinds to leave out, and the reason.
            label: distinguishes a second call in the same test from the first.

        Raises:
            WrongResult: the numerics rule is violated; the call is then not timed.
            Regression: an exact metric is worse than, or different from, its baseline. Times are judged after the
                tests: they fail the run, not its tests.
            UsageError: the call cannot be guarded as written.
        """
        __tracebackhide__ = True  # A failure shows the test's line and the message, no line of perfguard.
        for name in unknown:
            raise UsageError(
                f"perfguard(…, {name}=…): no such option; inputs by keyword go into kwargs={{{name!r}: …}}"
            )
        given: dict[str, object] = {"fn": fn, "reference": reference}
        for name, value in (given if rival is None else {**given, "rival": rival}).items():
            if not callable(value):
                raise UsageError(f"perfguard({name}={shown(value)}): must be callable; pass the function itself")
        check_options(tolerance=tolerance, work=work, kwargs=kwargs, cache=cache, label=label)
        if label in self._labels:
            raise UsageError(
                f"{self._case.nodeid}: two guarded calls with label {label!r}; one call is one case: "
                "parametrise the test, or give the second call a label='…' of its own (a test whose body is called "
                "repeatedly, as hypothesis does, cannot be guarded)"
            )
        self._labels.add(label)
        case = self._case.labelled(label) if label else self._case
        call = Call(
            fn,
            args,
            reference,
            {} if kwargs is None else dict(kwargs),
            tolerance=tolerance,
            work=work,
            mutates=mutates_of(mutates, args),
            clobbers=clobbers_of(clobbers, args),
            timed=timed,
            cache=cache,
            seed=seed_of(case, "calls"),
            cold_start=layers_of(cold_start),
            walk=walk_of(walk),
            configurations=configurations,
            every=self._every,
            settings=self._settings,
            groups=groups,
            rival=rival,
            hard=hard_of(hard),
        )
        try:
            from perfguard.check.numerics.modules import with_kept

            with interpreting():
                self._guard(with_kept(call), case)
        except Exception as error:
            cause = interpreter_error(error)
            if not isinstance(cause, NotInterpreted):
                hide_own_frames(error)
                raise
            missing = str(cause)
        else:
            return
        self.unsupported(missing)

    @with_room
    def _guard(self, call: Call, case: Case) -> None:
        """Measure the call, or only check it in a run that measures nothing."""
        __tracebackhide__ = True
        call = self._ranks.given(call)
        if self._ranks.guard(call, case):
            return
        with uncaptured(logging.getLogger(TRACE_LOGGER)):
            if self._run is None:
                from perfguard.check.hard_inputs.search import wrong_of

                if problems := wrong_of(call, self._extra_seconds):
                    raise WrongResult("\n".join([f"{case.name} is WRONG", *problems]))
                return
            results = self._run.guard(call, case)
        if not self._run.is_session:
            raise_for(self._run, results)


def raise_for(run: Run, results: list[CaseResult]) -> None:
    """Fail the test by the verdicts that are final already."""
    __tracebackhide__ = True
    lines = failure_lines(run, results)
    if lines:
        words = {verdict.word for result in results for verdict in result.verdicts}
        kind = (
            WrongResult if Word.WRONG in words else Regression if words & {Word.CHANGED, Word.SLOWER} else GuardFailure
        )
        raise kind("\n".join(lines))


def failure_lines(run: Run, results: list[CaseResult]) -> list[str]:
    """The message of a failing test: case, verdicts, how to reproduce. Empty if nothing fails."""
    from perfguard.render.words import command_prefix, compare_command, describe_verdict, reproduce_command

    lines: list[str] = []
    for result in results:
        failing = sorted(run.failing(result), key=result.sort_key)
        verdict_lines = [line for each in failing if each.word is not Word.SUSPECT for line in describe_verdict(each)]
        if verdict_lines:
            lines.append(f"{result.case.key} on {run.device.identity.slug}: {verdict_lines[0]}")
            lines += [f"  {line}" for line in verdict_lines[1:]]
    if lines:
        nodeid = run.config.typed(results[0].case.nodeid)
        lines.append(f"  reproduce: {reproduce_command(nodeid, command_prefix(run.report))}")
        if any(v.word is Word.SLOWER and v.storable for result in results for v in run.failing(result)):
            lines.append(f"  compare:   {compare_command(nodeid, command_prefix(run.report))}")
    return lines


@contextlib.contextmanager
def guarded(
    request: pytest.FixtureRequest, ranks_of: Callable[[pytest.Item], contextlib.AbstractContextManager[Ranks]]
) -> Iterator[Guarded]:
    """The fixture of one test, with the case's random numbers seeded while the test runs on its ranks."""
    from perfguard.measure.replay import seeded

    config = request.config
    case = case_of(request.node)
    require_torch(f"{case.nodeid}: the perfguard fixture")
    every = config.option.perfguard_all_configs
    run = None if mark_of(request.node).ranks else config.stash.get(RUN, None)  # Results of ranks reach it later.
    if run is None and OPENED not in config.stash:
        read = read_settings(config.rootpath, device=config.option.perfguard_device)
        config.stash[OPENED] = open_device(read.device), read
    # In a measuring run the runner spends this time, after the readings.
    device, read = config.stash[OPENED] if run is None else (run.device, run.config.settings)
    extra_seconds = read.extra_seconds if run is None else 0.0
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(seeded(seed_of(case), device))
            ranks = stack.enter_context(ranks_of(request.node))
            yield Guarded(case, device, run, every, extra_seconds, ranks=ranks)
    except Exception:
        if LOST not in config.stash:  # The random state of a lost device cannot be restored, and is not needed.
            raise


HOST_METRIC = "host_time_us"
BENCHMARK_TIMER = "pytest-benchmark"
_PROMISE, _FLOOR_US = 0.10, 2.0  # A slowdown of 10 % is detected if it is more than 2 µs.
_BLOCKS = 7  # Consecutive parts of the rounds, so that drift inside the session shows in the spread.


def benchmark_result(item: pytest.Item, case: Case) -> CaseResult | None:
    """The host time of a finished `benchmark` test: the median of the medians of consecutive parts of its rounds. None
    if the plugin measured nothing (disabled, skipped)."""
    rounds = benchmark_rounds(item)  # s, in the order measured
    if not rounds:
        return None
    from perfguard.measure.timers.timing import Blocks, Meter

    size = math.ceil(len(rounds) / _BLOCKS)
    blocks = tuple(1e6 * statistics.median(rounds[start : start + size]) for start in range(0, len(rounds), size))
    meter = Meter(BENCHMARK_TIMER, lambda: None, floor_us=0.0)  # pytest-benchmark has read all blocks.
    reading = meter.reading(HOST_METRIC, Blocks(blocks, rejected=0), promise=_PROMISE, floor=_FLOOR_US)
    return CaseResult(case=case, readings=[reading])
