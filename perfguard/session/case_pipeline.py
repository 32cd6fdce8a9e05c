"""The pipeline of a case: correctness, then exact metrics, then times. It measures and judges nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.interpreter.entry import interpreting
from perfguard.measure.binaries.call_binaries import Binaries, OnTarget, of_pass
from perfguard.measure.metrics import collectives, read_exact, read_timed
from perfguard.measure.metrics.compilation import observed_compilations
from perfguard.measure.metrics.contract import nondeterministic
from perfguard.measure.metrics.subject import Observed, Subject
from perfguard.measure.replay import (
    backward,
    clobbered_kept,
    copies,
    forward,
    has_gradients,
    main_dtype,
    pass_of,
    steps_of,
    touched_bytes,
    weights,
)
from perfguard.measure.timers.blocks import Collect, collect
from perfguard.measure.timers.timing import Workload
from perfguard.model.call import Call
from perfguard.model.config import Settings
from perfguard.model.mesh import described
from perfguard.model.records import (
    Case,
    CaseId,
    CaseResult,
    Conditions,
    Doubt,
    Pass,
    Reading,
    Throughput,
    Verdict,
    Word,
)
from perfguard.model.units import format_bandwidth, format_percent
from perfguard.session.child import EVERYTHING, Request
from perfguard.session.turns_file import TurnsFile
from perfguard.tensors.step import Step

if TYPE_CHECKING:
    from perfguard.check.all_configs import Given
    from perfguard.check.checked import Checked
    from perfguard.measure.devices.device import Device

StoredTimers = Callable[[Case], Mapping[str, str]]

# Clocks take up to 0.6 s to ramp up from idle, so the device is heated for 1 s. Each reading of the copy ceiling is a
# burst of copies, so several of them heat the device, and the last one reads the ceiling of a warm device.
PREHEAT_US = 1e6
MOST_PREHEAT_BURSTS = 200

CONDITIONS_SECONDS = 5.0  # Greatest age of the device state that is reported with a time.
MOST_OF_COPY = 1.05  # A cold reading cannot beat a plain copy of its bytes; 5 % allow for the copy's noise.


@dataclass(frozen=True)
class ReadingPlan:
    """How a process reads its cases.

    Attributes:
        asked: what is read. By default everything, as in a process that measures for itself.
        exact_only: whether times and other metrics of one machine are left out: the run holds for the whole target.
        preheats: whether the device is heated before the first case.
        timers: the timers of a case's earlier readings, by metric, which are used again.
        known_code: the record's fingerprints of a case's kernels, by kernel.
        unchanged: given a case's exact readings, the timed metrics that need no reading because the device runs the
            same code as when they were recorded.
        collect: collector of the blocks of a case's timed metrics; by default this process gathers them at once.
        cold: starter of cold processes for a case that asks for them, and for the numbers of layers that it names;
            None: no cold starts.
        binaries: compiler for targets; None: kernels of targets are not read.
        turns: stores how far each case came with derived inputs and configurations; None: each run begins anew.
    """

    asked: Request = EVERYTHING
    exact_only: bool = False
    preheats: bool = True
    timers: StoredTimers = lambda case: {}
    known_code: Callable[[Case], Mapping[str, str]] = lambda case: {}
    unchanged: Callable[[CaseResult], frozenset[str]] = lambda result: frozenset()
    collect: Callable[[Case], Collect] = lambda case: collect
    cold: Callable[[Case, Sequence[int]], list[Reading]] | None = None
    binaries: Binaries | None = None
    turns: TurnsFile | None = None


@dataclass
class Runner:
    """Measures guarded calls on one device."""

    device: Device
    settings: Settings
    plan: ReadingPlan = ReadingPlan()
    copy_bytes_per_second: float | None = None
    followed: dict[CaseId, list[OnTarget]] = field(default_factory=dict)  # Launches of each case on the targets.
    _seen: tuple[float, Conditions] | None = None  # Time of the last query, and the device's state then.

    def measure(self, call: Call, case: Case) -> list[CaseResult]:
        """The results of `call`: forward, and backward if an input requires grad. Wrong results are not timed.

        Raises:
            Exception: whatever the candidate or the reference raises.
        """
        self._preheat()
        doubts = self.plan.asked.doubts_about(case)
        results, given = self._measured(call, case)
        if doubts:
            results = self._answered(call, results, doubts)
        elif self.plan.asked.beside and given is not None:
            results = self._beside(call, results, given)
        # A rank keeps empty readings: the other ranks may have found something.
        return [each for each in results if each.readings or each.verdicts or each.doubts or call.ranks.in_step]

    @contextlib.contextmanager
    def observe(self, case: Case, body: str, take: Callable[[CaseResult], None]) -> Iterator[None]:
        """Observe the body, and pass its exact readings to `take`. A body that raises is not read.

        Args:
            body: hash of the test's own code.
        """
        from perfguard.measure.binaries.call_binaries import ObservedLaunches

        started, binaries = time.monotonic(), self.plan.binaries
        launches = None if binaries is None else ObservedLaunches(binaries, self.device)
        with (
            interpreting(),
            self.device.observed(None if launches is None else launches.note) as seen,
            observed_compilations() as (compiled, generated),
        ):
            yield
        self.followed[case.id] = [] if launches is None else launches.followed(seen)
        observed = Observed(seen, compiled, generated, self.followed[case.id])
        subject = Subject.of_test(observed, binaries, self.plan.known_code(case))
        readings = read_exact(subject, self.device)
        if self.plan.exact_only:
            readings = [each for each in readings if each.portable or each.target]
        take(CaseResult(case=case, inputs=body, readings=readings, seconds=round(time.monotonic() - started, 3)))

    def _beside(self, call: Call, results: list[CaseResult], given: Given) -> list[CaseResult]:
        """Add the doubts about derived inputs and other configurations. They run last, so that nothing of them is
        compiled, counted or timed with the case."""
        wrong = any(verdict.word is Word.WRONG for result in results for verdict in result.verdicts)
        if call.on_any_rank(wrong):
            return results
        from perfguard.check.hard_inputs.search import run_hard

        started, turns, first = time.monotonic(), self.plan.turns, results[0]
        search = run_hard(
            call, self.settings.extra_seconds, kept=given.kept, others=given.others, check_seconds=given.seconds,
            reached=None if turns is None else turns.of(first.case), tried=None if turns is None else turns.tried,
        )  # fmt: skip
        if turns is not None:
            turns.put(first.case, search.reached)
        seconds, notes = round(first.seconds + time.monotonic() - started, 3), [*first.notes, *search.notes]
        results = [msgspec.structs.replace(first, hard=search.counts, notes=notes, seconds=seconds), *results[1:]]
        return _with_doubts(results, search.doubts)

    def _answered(self, call: Call, results: list[CaseResult], doubts: Sequence[Doubt]) -> list[CaseResult]:
        """The results, whose doubts are the answers to `doubts`. They run last, as derived inputs do."""
        from perfguard.check.ask import ask

        return _with_doubts([msgspec.structs.replace(each, doubts=[]) for each in results], ask(call, doubts))

    def _measured(self, call: Call, case: Case) -> tuple[list[CaseResult], Given | None]:
        """The results of the call as given, and its check."""
        started = time.monotonic()
        from perfguard.check.all_configs import check_given  # This imports torch, which a suite of benchmarks may lack.
        from perfguard.check.hard_inputs.other_calls import other_calls
        from perfguard.check.numerics.trial import Inputs

        if self.plan.binaries is not None and self.plan.asked.exact:
            call = replace(call, others=other_calls(call))
        given = check_given(call) if self.plan.asked.numerics else None
        checked = None if given is None else given.checked
        results = []
        for direction in _passes(call, checked):
            result = CaseResult(
                case=msgspec.structs.replace(case, direction=direction),
                # Another mesh is another measurement.
                inputs="; ".join(
                    filter(None, [described(call.mesh), checked.inputs if checked else Inputs(call).describe()])
                ),
                accuracy=checked.of_pass(direction) if checked else [],
                verdicts=_wrong(checked, direction) if checked else [],
                notes=checked.notes if checked else [],
                unchecked={} if given is None else given.unchecked,
            )
            if checked is None or not call.on_any_rank(bool(checked.wrong)):
                result = self._read(call, result, checked)
            elif not call.ranks.alone:
                result = self._with_missing_waits(call, result, checked)
            results.append(msgspec.structs.replace(result, seconds=round(time.monotonic() - started, 3)))
            started = time.monotonic()
        return results, given

    def _preheat(self) -> None:
        """Heat the device once per session, before the first case: on an idle device the first readings are slow."""
        if self.copy_bytes_per_second is not None or not self.device.asynchronous or not self.plan.preheats:
            return
        started = self.device.now_us()
        for _ in range(MOST_PREHEAT_BURSTS):
            self.copy_bytes_per_second = self.device.copy_bytes_per_second()
            if self.device.now_us() - started > PREHEAT_US:
                break

    def _read(self, call: Call, result: CaseResult, checked: Checked | None) -> CaseResult:
        """Read the exact metrics, then the times, except those that the exact metrics show to be unchanged."""
        subject = self._subject(call, result.case, checked)
        exact = read_exact(subject, self.device) if self.plan.asked.exact else []
        if subject.binaries is not None and self.plan.asked.exact:
            launches = subject.binaries.of(call, self.device)
            self.followed[result.id] = of_pass(launches, result.case.direction)
        if self.plan.exact_only:
            exact = [reading for reading in exact if reading.portable or reading.target]
        if checked is not None and self.plan.asked.exact:
            outputs = [each.output for each in checked.of_pass(result.case.direction)]
            exact.append(nondeterministic([each for each in outputs if each in checked.varying]))
        wrong = [Verdict(Word.WRONG, each.metric, each.problem) for each in exact if each.problem]
        result = msgspec.structs.replace(result, readings=exact, verdicts=wrong)
        if wrong:
            return result
        unchanged = self.plan.unchanged(result)
        # What Triton's interpreter takes says nothing of a GPU; its work is among the exact metrics.
        times = self.plan.asked.times and result.reading("kernel_work") is None
        timed = read_timed(subject, self.device, unchanged) if times else []
        result = msgspec.structs.replace(result, readings=exact + timed, conditions=self._conditions(timed))
        # Throughput is computed from the first time, which is not read if it is unchanged.
        return result if unchanged else self._with_throughput(call, result)

    def _with_missing_waits(self, call: Call, result: CaseResult, checked: Checked) -> CaseResult:
        """Add exchanges without a wait: they are wrong by themselves, and the likeliest cause of the rest."""
        readings = collectives.read(self._subject(call, result.case, checked), self.device)
        unwaited = [Verdict(Word.WRONG, each.metric, each.problem) for each in readings if each.problem]
        return msgspec.structs.replace(result, verdicts=[*unwaited, *result.verdicts])

    def _conditions(self, timed: Sequence[Reading]) -> Conditions | None:
        """The device's state while its clocks are up; not for every case, since a query may take 0.1 s."""
        if not timed or not self.device.asynchronous:
            return None
        now = time.monotonic()
        if self._seen is None or now - self._seen[0] > CONDITIONS_SECONDS:
            self._seen = now, msgspec.structs.replace(self.device.conditions(), board=self.device.board)
        return self._seen[1]

    def _subject(self, call: Call, case: Case, checked: Checked | None) -> Subject:
        if case.direction == "backward":
            forget_compiled()  # Code compiled for one backward pass cannot be replayed.
        put_back = clobbered_kept(call)  # A backward pass builds its graph by a forward pass, so this comes first.
        run = pass_of(call, case.direction)
        alone = call.ranks.alone
        # Ranks on a CPU share its cores, so their times influence each other.
        timed = call.timed and not self.plan.exact_only and (alone or self.device.asynchronous)
        # The check has made the forward call ten times. With times, or with a queue, the readings make their own calls.
        made = checked is not None and not timed and not self.device.asynchronous and case.direction == "forward"
        return Subject(
            run=run,
            direction=case.direction,
            cache=call.cache,
            timed=timed,
            seconds=self.settings.case_seconds,
            stored_timers=self.plan.timers(case),
            args=(*call.args, *call.kwargs.values()),
            declared_strides=checked.strides if checked is not None and case.direction == "forward" else (),
            weights=weights(call),
            copies=copies(call, case.direction),
            bytes=touched_bytes(call, run()) if timed and alone else 0,  # Only timers use it.
            collect=self.plan.collect(case),
            call=call,
            binaries=self.plan.binaries if alone else None,  # Only tests on one rank guard kernels.
            known_code=self.plan.known_code(case),
            # The parent counts over the steps; fresh processes only measure times.
            steps=steps_of(call) if self.plan.asked.numerics and case.direction == "forward" else (),
            settings=call.settings,
            rival=_rival(call, case) if timed and alone else None,
            cold=self._cold(call, case),
            warm=made or not call.ranks.has_data,  # Nothing is compiled or tuned then.
            differentiated=made and checked is not None and checked.backward is not None,
            put_back=put_back,
        )

    def _cold(self, call: Call, case: Case) -> Callable[[], list[Reading]] | None:
        """The start of cold processes for a forward case, which includes both passes; None for other cases."""
        start = self.plan.cold
        wanted = (
            call.cold_start is not False and call.timed and not self.plan.exact_only and case.direction == "forward"
        )
        depths = () if isinstance(call.cold_start, bool) else tuple(call.cold_start)
        return (lambda: start(case, depths)) if wanted and start is not None else None

    def _with_throughput(self, call: Call, result: CaseResult) -> CaseResult:
        """Compute throughput from the declared work, and refuse times that no memory could deliver."""
        primary = next((reading for reading in result.readings if reading.timed), None)
        work = call.work
        if primary is None or work is None or not isinstance(primary.value, int | float):
            return result
        passes = {"forward": (work.bytes, work.flop), "backward": (work.backward_bytes, work.backward_flop)}
        moved, flop = passes[result.case.direction]
        seconds = primary.value * 1e-6
        bandwidth = moved / seconds if moved else None
        fraction = bandwidth / self._copy_ceiling() if bandwidth else None
        through = self._beside_product(call, Throughput(bandwidth, flop / seconds if flop else None, fraction))
        result = msgspec.structs.replace(result, throughput=through)
        if bandwidth and fraction and fraction > MOST_OF_COPY and self.device.asynchronous and call.cache == "cold":
            refused = Verdict(
                word=Word.UNRESOLVED,
                metric=primary.metric,
                reason=f"{format_bandwidth(bandwidth)} is {format_percent(fraction)} of the copy ceiling: "
                "the cache was not cold or work= counts too many bytes; the time is refused",
            )
            kept = [reading for reading in result.readings if reading is not primary]
            result = msgspec.structs.replace(result, readings=kept, verdicts=[refused])
        return result

    def _beside_product(self, call: Call, through: Throughput) -> Throughput:
        """Add the share of what a large matrix product reaches, except beside pairs and on ranks."""
        rate = through.flop_per_second
        dtype = main_dtype(call) if rate and self.plan.asked.numerics and call.ranks.alone else None
        if rate is None or dtype is None or not (most := self.device.matmul_flop_per_second(dtype)):
            return through
        return msgspec.structs.replace(through, matmul_fraction=rate / most, matmul=str(dtype).removeprefix("torch."))

    def _copy_ceiling(self) -> float:
        self.copy_bytes_per_second = self.copy_bytes_per_second or self.device.copy_bytes_per_second()
        return self.copy_bytes_per_second


def _rival(call: Call, case: Case) -> Callable[[], Workload] | None:
    """The same pass of the rival, on the same inputs."""
    if call.rival is None:
        return None
    from perfguard.check.numerics.modules import with_kept

    theirs = with_kept(replace(call, fn=call.rival, kept=None))

    def ready() -> Workload:
        run = forward(theirs) if case.direction == "forward" else backward(theirs)
        return Workload(run, call.cache, copies(theirs, case.direction), touched_bytes(theirs, run()))

    return ready


def _passes(call: Call, checked: Checked | None) -> list[Pass]:
    """Forward, and backward if an input requires grad and the outputs depend on it."""
    if checked is not None:
        differentiable = checked.backward is not None
    else:
        differentiable = has_gradients(call) if call.ranks.alone else Step(call).has_backward()
    return ["forward", "backward"] if differentiable else ["forward"]


def _wrong(checked: Checked, direction: Pass) -> list[Verdict]:
    """One verdict for each problem of the call as given in this pass."""
    return [
        Verdict(Word.WRONG, output, problem)
        for output, problem, backward in checked.placed()
        if backward == (direction == "backward")
    ]


def _with_doubts(results: list[CaseResult], doubts: Sequence[Doubt]) -> list[CaseResult]:
    """The results of a call's passes, each with the doubts about it added."""
    for doubt in doubts:
        at = len(results) - 1 if doubt.backward else 0
        results[at] = msgspec.structs.replace(results[at], doubts=[*results[at].doubts, doubt])
    return results
