"""A guarded call on one of several ranks: checked, and measured if the run measures. Judges nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfguard.judge.across_ranks import with_ranks
from perfguard.model.call import Call, RankGroup
from perfguard.model.config import Config
from perfguard.model.errors import WrongResult
from perfguard.model.records import Case, CaseResult
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.child import Request
from perfguard.session.ranks.agreement import Agreement
from perfguard.session.ranks.world import World

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


@dataclass
class RankGuard:
    """Guards the calls of one rank.

    Attributes:
        runner: reads metrics; None: calls are only checked.
        extra_seconds: processor time for other configurations of a call that is only checked.
        results: of the running test's calls.
        unsupported: why the running test cannot run on this hardware; empty if it can.
    """

    agreement: Agreement
    device: Device
    runner: Runner | None = None
    extra_seconds: float = 0.0
    results: list[CaseResult] = field(default_factory=list)
    unsupported: str = ""

    @property
    def world(self) -> World:
        """The ranks, as this one sees them."""
        return self.agreement.world

    def begin(self) -> None:
        """A test begins."""
        self.results, self.unsupported = [], ""
        self.world.enter_test()

    def guard(self, call: Call, case: Case) -> None:
        """Check and measure `call`, which every rank makes.

        Raises:
            WrongResult: the run measures nothing, and the result is wrong on any rank. A measuring run judges later.
        """
        __tracebackhide__ = True
        exchange, world = self.agreement.exchange, self.world
        # Which inputs can be derived would be another thing on each rank.
        call = replace(call, rank_group=RankGroup(world.rank, world.ranks, exchange), hard=None)
        if self.runner is not None:
            self.results += self.runner.measure(call, case)
            return
        from perfguard.check.hard_inputs.search import wrong_of

        problems = with_ranks(exchange("the check's problems", wrong_of(call, self.extra_seconds)))
        if problems:
            raise WrongResult("\n".join([f"{case.name} is WRONG", *problems]))


def rank_runner(config: Config, device: Device, request: Request | None) -> Runner:
    """Reads metrics. `request`: of the launch; None under torchrun."""
    plan = ReadingPlan(
        numerics=request is None or request.numerics,
        times=request is None or request.times,
        beside=request is None or request.numerics,
        exact_only=config.lane != "" and config.lane == device.identity.target,
    )
    return Runner(device, config.settings, plan)
