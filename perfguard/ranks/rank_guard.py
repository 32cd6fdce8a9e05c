"""Guards a call on one of several ranks: checks it, and measures it if the run measures. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfguard.judge.across_ranks import with_ranks
from perfguard.model.call import Call, CallRanks
from perfguard.model.config import Config
from perfguard.model.errors import WrongResult
from perfguard.model.records import Case, CaseResult
from perfguard.ranks.peers import Peers
from perfguard.ranks.rank_group import RankGroup
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.child import Request

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


@dataclass
class RankGuard:
    """Guards the calls of one rank.

    Attributes:
        runner: reads metrics; None: calls are only checked.
        extra_seconds: processor time for other configurations of a call that is only checked.
        results: results of the running test's calls.
        unsupported: the reason why this hardware cannot run the test; empty if it can.
    """

    peers: Peers
    device: Device
    runner: Runner | None = None
    extra_seconds: float = 0.0
    results: list[CaseResult] = field(default_factory=list)
    unsupported: str = ""

    @property
    def group(self) -> RankGroup:
        """The process group of the ranks."""
        return self.peers.group

    def begin(self) -> None:
        """Begin a test."""
        self.results, self.unsupported = [], ""
        self.group.enter_test()

    def guard(self, call: Call, case: Case) -> None:
        """Check and measure `call`, which every rank makes.

        Raises:
            WrongResult: the run measures nothing, and the result is wrong on any rank. A measuring run judges later.
        """
        __tracebackhide__ = True
        exchange, group = self.peers.exchange, self.group
        # No inputs are derived, since each rank could derive others.
        call = replace(call, rank_group=CallRanks(group.rank, group.ranks, exchange), hard=None)
        if self.runner is not None:
            self.results += self.runner.measure(call, case)
            return
        from perfguard.check.hard_inputs.search import wrong_of

        problems = with_ranks(exchange("the check's problems", wrong_of(call, self.extra_seconds)))
        if problems:
            raise WrongResult("\n".join([f"{case.name} is WRONG", *problems]))


def rank_runner(config: Config, device: Device, request: Request | None) -> Runner:
    """The runner that reads a rank's metrics. `request`: of the launch; None under torchrun."""
    plan = ReadingPlan(
        numerics=request is None or request.numerics,
        times=request is None or request.times,
        beside=request is None or request.numerics,
        exact_only=config.lane != "" and config.lane == device.identity.target,
    )
    return Runner(device, config.settings, plan)
