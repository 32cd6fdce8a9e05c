"""The base that a working tree is compared with, and the readings of process pairs of both."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perfguard.model.records.case import CaseResult


class BaseTree(Struct, frozen=True, omit_defaults=True):
    """The commit of the repository that the working tree is compared with.

    Attributes:
        commit: its full hash; None if there is none, for the reason in `problem`.
        equal: the working tree differs from it at most in documentation, baselines and reports, so the code cannot have
            moved any time.
        problem: reason why nothing can be compared, with the next step.
    """

    commit: str | None = None
    equal: bool = False
    problem: str = ""


NO_BASE = BaseTree(problem="nobody looked for a base commit")


class PairReading(Struct, frozen=True, omit_defaults=True):
    """The result of one process pair for one time: new processes of the base, of a second checkout of the base (the
    control) and of the working tree, measured by turns on one device.

    Attributes:
        pair: the number of the pair, from 1.
        change: ln(working tree / base).
        control: ln(second checkout of the base / base).
        base_us, work_us: median block, µs per call.
        base_mhz, work_mhz: median clock of the device's processors in these blocks; None if unknown.
    """

    pair: Annotated[int, Meta(ge=1)]
    change: float
    control: float
    base_us: float
    work_us: float
    base_mhz: float | None = None
    work_mhz: float | None = None


class PairedTime(Struct, frozen=True, omit_defaults=True):
    """One time of one case in all process pairs. `problem` is the reason if any of them did not read it."""

    metric: str
    timer: str = ""
    readings: list[PairReading] = []
    problem: str = ""


class PairedCase(Struct, frozen=True, omit_defaults=True):
    """One case beside its base.

    Attributes:
        base: its results in the base's process (exact metrics, no times); None if the base lacks the case.
        times: the times in question.
        problem: reason why base and working tree cannot be compared at all.
    """

    suite: str
    key: str
    base: CaseResult | None = None
    times: list[PairedTime] = []
    problem: str = ""


class Pairing(Struct, frozen=True, omit_defaults=True):
    """All process pairs of one run on one device.

    Attributes:
        base: full hash of the commit that was measured beside the working tree.
        pairs: number of process pairs.
        problem: reason for an end before everything was decided; otherwise empty.
    """

    base: str
    cases: list[PairedCase] = []
    pairs: int = 0
    problem: str = ""
    device: int = 0


NO_PAIRS = "no process pair measured it"
