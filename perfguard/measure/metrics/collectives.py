"""Exchanges between ranks: their kinds, dimensions of the mesh, bytes, hiding work, and missing waits.

Only cases of several ranks have these readings, each of one pass of a warm training step. They depend on no clock and
no backend, so gloo, NCCL and torch's fake backend give the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfguard.measure.devices.activity import Exchange
from perfguard.measure.metrics.subject import Subject, listed
from perfguard.model.limits import Limits
from perfguard.model.records import Across, Better, Parts, Reading, Value
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False

_RANK = 20  # Compilation and launches follow from how the module is split.
_MOST_NAMED = 5  # A note names so many places.

LIMITS = {
    "collectives": Limits(Better.SAME, portable=True),
    "collective_bytes": Limits(Better.LOWER, portable=True),
    "exchange_bytes": Limits(Better.LOWER, portable=True),
    "implicit_redistributions": Limits(Better.LOWER, portable=True),
    "messages": Limits(Better.SAME, portable=True),
    "overlap_flop": Limits(Better.HIGHER, portable=True),
    "unwaited": Limits(Better.LOWER, portable=True),
}

#: Metrics that depend on the rank: on its place in a pipeline, or on the rows routed to it. All other metrics of a case
#: must be equal on all ranks.
PER_RANK = frozenset({"exchange_bytes", "messages", "overlap_flop"})

_MESSAGES = ("send", "recv")


def read(subject: Subject, device: Device) -> list[Reading]:
    """`collectives` in order; `collective_bytes` and `exchange_bytes` by collective; `messages` between ranks;
    `unwaited`, any of which is a fault; `implicit_redistributions`; `overlap_flop`. Empty for a process alone."""
    if subject.ranks.alone:
        return []
    activity = subject.dispatched(device)
    exchanges = activity.exchanges
    collectives = [each for each in exchanges if each.kind not in _MESSAGES]
    messages = [each for each in exchanges if each.kind in _MESSAGES]
    unwaited = [each for each in exchanges if each.waited is False]
    implicit = [each for each in exchanges if each.implicit]
    early = _places(unwaited, "the result is used before it is waited for, or dropped")
    moves = (
        f"DTensor moves data by itself: {_places(implicit, '')}; call redistribute() there, or choose other placements"
    )
    readings = [
        _reading("collectives", [each.name for each in collectives], note=_places(collectives, "")),
        _reading("collective_bytes", _sums([each for each in collectives if not each.routed], lambda each: each.bytes)),
        _reading("unwaited", len(unwaited), problem=early and f"unwaited: {early}"),
        _reading("implicit_redistributions", len(implicit), note=moves if implicit else ""),
        _reading("overlap_flop", _sums([each for each in collectives if _hides(each)], lambda each: each.overlap_flop)),
    ]
    routed = [each for each in collectives if each.routed]
    if routed:
        sent, received = (_sums(routed, of) for of in (lambda each: each.sent, lambda each: each.received))
        ways = {"sent": sent, "received": received}
        parts: Parts = {f"{name} {way}": count for way, sums in ways.items() for name, count in sums.items()}
        readings.append(_reading("exchange_bytes", parts))
    if messages:
        readings.append(_reading("messages", [f"{each.name} {each.bytes} B" for each in messages]))
    return readings


def _reading(metric: str, value: Value, **others: Any) -> Reading:
    unit = Unit.TEXT if isinstance(value, list) else Unit.BYTES if "bytes" in metric else Unit.COUNT
    # Another version of torch may exchange differently, so all readings drift.
    across = Across.EACH if metric in PER_RANK else Across.EQUAL
    return LIMITS[metric].reading(metric, unit, value, drifts=True, rank=_RANK, across=across, **others)


def _sums(exchanges: Sequence[Exchange], of: Callable[[Exchange], int]) -> Parts:
    sums: Counter[str] = Counter()
    for exchange in exchanges:
        sums[exchange.name] += of(exchange)
    return dict(sums)


def _hides(exchange: Exchange) -> bool:
    """Whether the first use of the result shows how much work hides the exchange. FSDP's reduced gradients are first
    used by the optimiser, or by a division if the backend has no mean."""
    return exchange.kind in ("all_gather", "all_to_all") or exchange.waited is not None


def _places(exchanges: Sequence[Exchange], what: str) -> str:
    """The places of exchanges as text: `all_gather tp float32 for aten.mm at block.py:12 in forward (2 times); …`"""
    texts = Counter(
        " ".join(filter(None, [each.name, each.implicit and f"for {each.implicit}", each.place and f"at {each.place}"]))
        for each in exchanges
    )
    return f"{listed(texts, _MOST_NAMED)}{': ' if what else ''}{what}" if texts else ""
