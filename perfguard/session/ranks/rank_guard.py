"""A guarded call on one of several ranks: checked, and measured if the run measures. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from perfguard.judge.across_ranks import said_of_ranks
from perfguard.model.call import Call, Together
from perfguard.model.config import Config
from perfguard.model.errors import WrongResult
from perfguard.model.mesh import described
from perfguard.model.records import Case, CaseResult
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.ranks.agreement import Agreement

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from perfguard.measure.devices.device import Device


@dataclass
class RankGuard:
    """Guards the calls of one rank.

    Attributes:
        runner: reads metrics; None: calls are only checked.
        results: of the running test's calls.
        unsupported: why the running test cannot run on this hardware; empty if it can.
    """

    agreement: Agreement
    device: Device
    runner: Runner | None = None
    results: list[CaseResult] = field(default_factory=list)
    unsupported: str = ""
    _dimensions: Mapping[str, int] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.agreement.world.rank

    @property
    def ranks(self) -> int:
        return self.agreement.world.ranks

    def begin(self) -> None:
        """A test begins."""
        self.results, self.unsupported, self._dimensions = [], "", {"ranks": self.ranks}

    def mesh(self, dimensions: Mapping[str, int]) -> DeviceMesh:
        """The mesh of these dimensions; the test's later calls are made on it."""
        mesh = self.agreement.world.mesh(dimensions)
        self._dimensions = dimensions
        return mesh

    def guard(self, call: Call, case: Case) -> None:
        """Check and measure `call`, which every rank makes.

        Raises:
            WrongResult: the run measures nothing, and the result is wrong on any rank. A measuring run judges later.
        """
        __tracebackhide__ = True
        exchange = self.agreement.exchange
        call = replace(call, together=Together(self.rank, self.ranks, exchange), mesh=self._dimensions)
        if self.runner is not None:
            self.results += [self._with_mesh(result) for result in self.runner.measure(call, case)]
            return
        from perfguard.check.all_configs import check_configurations

        problems = said_of_ranks(exchange("the check's problems", check_configurations(call).wrong))
        if problems:
            raise WrongResult("\n".join([f"{case.name} is WRONG", *problems]))

    def _with_mesh(self, result: CaseResult) -> CaseResult:
        """Another mesh is another measurement, so it belongs to the inputs."""
        return msgspec.structs.replace(result, inputs=f"{described(self._dimensions)}; {result.inputs}")


def rank_runner(config: Config, device: Device) -> Runner:
    """Reads exact metrics: times need ranks that start together."""
    plan = ReadingPlan(hard=False, exact_only=config.lane != "" and config.lane == device.identity.target)
    return Runner(device, config.settings, plan)
