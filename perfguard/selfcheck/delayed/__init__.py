"""perfguard's own kernel with an adjustable delay, and the guarded suite that measures it. The tuner writes the plan of
the delays, which the suite reads."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from perfguard.model.errors import UsageError
from perfguard.selfcheck.findings import SLOWDOWNS

LENGTHS_US = (3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)
AIMS = (0.0, *SLOWDOWNS)
PLAN = "plan.json"


class Delay(Struct, frozen=True):
    """One kernel: `steps` links of work and `tail` further links, the delay, which aim at a slowdown."""

    length_us: float
    aimed: float  # 0: the kernel without a tail
    steps: int
    tail: int = 0

    @property
    def name(self) -> str:
        """Id in the suite, e.g. `10us-3pct`."""
        return f"{self.length_us:g}us-{100 * self.aimed:g}pct"


def read_plan(folder: Path) -> list[Delay]:
    """The tuned delays; empty without a plan.

    Raises:
        UsageError: the file is not a plan of the tuner.
    """
    path = folder / PLAN
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Delay]) if path.is_file() else []
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: no plan of delays ({error}); remove it and run perfguard selfcheck again") from error
