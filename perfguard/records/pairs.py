"""What a working tree is compared with, and what process pairs of both read."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perfguard.records.cases import CaseResult


class BaseTree(Struct, frozen=True, omit_defaults=True):
    """What the working tree is compared with: one commit of the repository.

    Attributes:
        commit: its full hash; None where there is none to compare with, and `problem` says why.
        equal: the working tree differs from it in documentation, baselines and reports at most: no time can have moved
            because of the code.
        problem: why nothing can be compared, with the next step.
    """

    commit: str | None = None
    equal: bool = False
    problem: str = ""


NO_BASE = BaseTree(problem="nobody looked for a base commit")


class PairReading(Struct, frozen=True, omit_defaults=True):
    """What one process pair says about one time: new processes of the base, of a second checkout of the base (the
    control) and of the working tree, measured by turns on one device.

    Attributes:
        pair: the number of the pair, from 1.
        change: ln(working tree / base).
        control: ln(second checkout of the base / base).
        base_us, work_us: median block, µs per call.
        base_mhz, work_mhz: mean clock of the device's processors in these blocks; None where nobody tells.
    """

    pair: Annotated[int, Meta(ge=1)]
    change: float
    control: float
    base_us: float
    work_us: float
    base_mhz: float | None = None
    work_mhz: float | None = None


class PairedTime(Struct, frozen=True, omit_defaults=True):
    """One time of one case in all process pairs; `problem`: why some or all of them did not read it."""

    metric: str
    timer: str = ""
    readings: list[PairReading] = []
    problem: str = ""


class PairedCase(Struct, frozen=True, omit_defaults=True):
    """One case beside its base.

    Attributes:
        base: what the base's process read of it (exact metrics; no times); None where the base does not have it.
        times: what was in question.
        problem: why base and working tree cannot be compared at all.
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
        pairs: how many there were.
        problem: why it ended before everything was decided; empty if it did not.
    """

    base: str
    cases: list[PairedCase] = []
    pairs: int = 0
    problem: str = ""
    device: int = 0
