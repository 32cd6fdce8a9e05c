"""What the place where a case is judged does to that case alone: another board, another day (docs/judging.md).

Fresh processes there agree with each other, so that it looks like a slowdown of the case; the cases beside it tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from perfguard.judge.common import Common
from perfguard.units import format_percent

EXCESS_SIGMAS = 2.0  # by which the scatter of the cases exceeds their noise before the place is another one
OTHER_BOARD = 0.006  # what another board of a kind does to each case alone where few tell: 0.4 to 0.6 % on H200s
BOARD_DEGREES = 4.0  # degrees of freedom that this is worth beside what the cases of a run tell
MAD_EFFICIENCY = 0.37  # of a median deviation, beside a standard deviation (Rousseeuw and Croux, JASA 88, 1993)


@dataclass(frozen=True)
class Place:
    """What the place where a case is judged does to it alone, and to its recording did not.

    Attributes:
        apart: standard deviation, 0 where nothing of the kind is seen.
        degrees: its degrees of freedom.
        note: where it is not 0, why, and what to do.
    """

    apart: float = 0.0
    degrees: float = math.inf
    note: str = ""


def place_of(commons: Sequence[Common], elsewhere: bool) -> Place:
    """The place, as all sessions of a run tell it together.

    Where nobody knows which board recorded, what the cases scatter beyond their noise counts if it is certain. On a
    board that is known to be another one, `elsewhere`, it counts whatever it is; as few cases tell little, what boards
    differ by stands beside them there, but never makes less of what they tell.
    """
    compare = "`perfguard compare` needs no baseline"
    if not commons:
        note = f"recorded on another board, and too few other cases tell how far it lies; {compare}"
        return Place(OTHER_BOARD, BOARD_DEGREES, note) if elsewhere else Place()
    excess = fmean(common.seen - common.expected for common in commons)
    degrees = min(MAD_EFFICIENCY * (common.cases - 1) for common in commons)
    error = fmean(common.expected for common in commons) * math.sqrt(2 / (degrees * len(commons)))
    if excess <= (0.0 if elsewhere else EXCESS_SIGMAS * error):
        return Place()
    told = (
        f"the other cases lie {format_percent(math.sqrt(excess))} round their baselines, more than their sessions did"
    )
    if not elsewhere:
        note = f"{told}: another board or day than the recording's; {compare}"
        return Place(math.sqrt(excess), degrees, note)
    pooled = (BOARD_DEGREES * OTHER_BOARD**2 + degrees * excess) / (BOARD_DEGREES + degrees)
    note = f"{told}: another board than the recording's; {compare}"
    return Place(math.sqrt(max(excess, pooled)), BOARD_DEGREES + degrees, note)
