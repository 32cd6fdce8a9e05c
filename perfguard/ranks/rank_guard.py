"""Guards a call on one of several ranks: checks it, and measures it if the run measures. The parent judges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perfguard.judge.across_ranks import with_ranks
from perfguard.measure.devices.device import Device
from perfguard.model.call import Call
from perfguard.model.config import Config
from perfguard.model.errors import WrongResult
from perfguard.model.records import Case, CaseResult
from perfguard.ranks.rank_group import Peers
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.child import Request


@dataclass(kw_only=True)
class RankGuard(Peers):
    """The ranks of a launch. Each of them guards the calls of a test.

    Attributes:
        runner: reads metrics; if None, calls are only checked.
        extra_seconds: processor time for other configurations of a call that is only checked.
        results: results of the running test's calls.
        reason: the reason why this hardware cannot run the test; empty if it can.
    """

    runner: Runner | None = None
    extra_seconds: float = 0.0
    results: list[CaseResult] = field(default_factory=list)
    reason: str = ""

    def enter_test(self) -> None:
        super().enter_test()
        self.results, self.reason = [], ""

    def unsupported(self, reason: str) -> None:
        self.reason = reason

    def given(self, call: Call) -> Call:
        """The call without derived inputs, because ranks could derive different ones, and without its work, because the
        throughput of a rank is not that of the call."""
        return replace(super().given(call), hard=None, work=None)

    def guard(self, call: Call, case: Case) -> bool:
        """Check and measure `call`, which every rank makes.

        Raises:
            WrongResult: the run only checks, and the result is wrong on any rank. A measuring run judges later.
        """
        __tracebackhide__ = True
        if self.runner is not None:
            self.results += self.runner.measure(call, case)
            return True
        from perfguard.check.hard_inputs.search import wrong_of

        problems = with_ranks(self.exchange("the check's problems", wrong_of(call, self.extra_seconds)))
        if problems:
            raise WrongResult("\n".join([f"{case.name} is WRONG", *problems]))
        return True


def rank_runner(config: Config, device: Device, request: Request | None) -> Runner:
    """The runner that reads a rank's metrics. `request` is that of the launch, or None under torchrun."""
    asked = request or Request(numerics=True)
    exact_only = config.lane != "" and config.lane == device.identity.target
    plan = ReadingPlan(numerics=asked.numerics, beside=asked.numerics, times=asked.times, exact_only=exact_only)
    return Runner(device, config.settings, plan)
