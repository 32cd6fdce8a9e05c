"""How exchanges ran, from the profiles of all ranks: how long data travelled, who was waited for, what nothing hid.

The kernel of an exchange runs from the moment when its own rank arrives to the end of the transfer. The last rank to
arrive waits for nobody: the shortest duration is the transfer, and the longest less the shortest is the skew. Only
durations of different devices are compared, never their clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from perfguard.measure.collectives import nccl
from perfguard.measure.collectives.exchange import Exchange
from perfguard.measure.devices.activity import Span
from perfguard.measure.timers.profiler import covered_us
from perfguard.model.mesh import Mesh, group_of

_MESSAGES = ("send", "recv")  # the other rank of a message is not known
_ALONE = "one rank"


class Ran(Struct, frozen=True):
    """One collective on one rank.

    Attributes:
        name, dimension: as of `Exchange`.
        us: duration of its kernel.
        moved: bytes that count for its bus bandwidth.
    """

    name: str
    dimension: str
    us: float
    moved: float


class Profile(Struct, frozen=True):
    """One rank's pass.

    Attributes:
        ran: its collectives, in order; None if its kernels do not match its exchanges one by one.
        exchanging_us: time in which an exchange ran.
        exposed_us: the part of it in which nothing else ran.
    """

    ran: list[Ran] | None
    exchanging_us: float
    exposed_us: float


def profile_of(spans: Sequence[Span], exchanges: Sequence[Exchange], rank: int, mesh: Mesh) -> Profile:
    """One rank's profile.

    Args:
        spans: the device's work of the pass, in the order of launches.
        exchanges: of the pass, in order.
        rank: whose they are.
    """
    theirs = [(span.start_us, span.end_us) for span in spans if nccl.is_exchange(span.name)]
    others = [(span.start_us, span.end_us) for span in spans if not nccl.is_exchange(span.name)]
    # exchanging - (exchanging and computing) = (exchanging or computing) - computing
    exposed_us = covered_us([*theirs, *others]) - covered_us(others)
    return Profile(_ran(spans, exchanges, rank, mesh), covered_us(theirs), exposed_us)


def _ran(spans: Sequence[Span], exchanges: Sequence[Exchange], rank: int, mesh: Mesh) -> list[Ran] | None:
    kernels = [span for span in spans if nccl.is_exchange(span.name)]
    sent = [each for each in exchanges if each.dimension != _ALONE]
    if len(kernels) != len(sent) or not all(nccl.runs(k.name, e.kind) for k, e in zip(kernels, sent, strict=True)):
        return None
    found = []
    for kernel, exchange in zip(kernels, sent, strict=True):
        group = group_of(rank, exchange.dimension, mesh)
        if group is not None and exchange.kind not in _MESSAGES:
            moved = moved_bytes(exchange, len(group), group.index(rank))
            found.append(Ran(exchange.name, exchange.dimension, kernel.end_us - kernel.start_us, moved))
    return found


def moved_bytes(exchange: Exchange, ranks: int, place: int) -> float:
    """Bytes of an exchange that count for its bus bandwidth, as nccl-tests counts them (doc/PERFORMANCE.md there):
    what the slowest link must carry whatever the algorithm. With S bytes of the whole buffer and n ranks: 2(n-1)/n·S
    of an all_reduce, (n-1)/n·S of all_gather, reduce_scatter and all_to_all, S of broadcast and reduce. Of an uneven
    all_to_all what this rank really sends to others, or receives from them, if that is more.

    Args:
        ranks: n, those of the group.
        place: this rank's in the group.
    """
    others = (ranks - 1) / ranks
    if exchange.kind == "all_to_all":
        ways = ((exchange.sent, exchange.sent_rows), (exchange.received, exchange.received_rows))
        return max(count * (1 - rows[place] / sum(rows) if sum(rows) else others) for count, rows in ways)
    if exchange.kind in ("gather", "scatter"):  # their bytes are one rank's part
        return exchange.bytes * (ranks - 1)
    return exchange.bytes * {"all_reduce": 2 * others, "all_gather": others, "reduce_scatter": others}.get(
        exchange.kind, 1.0
    )


@dataclass(frozen=True)
class Travel:
    """All collectives of one name in a pass, of the group that took the longest.

    Attributes:
        transfer_us: sum of the shortest durations.
        skew_us: sum of the times that the first rank waited for the last.
        last: the rank that the others waited for the longest; None if none was late.
        bytes_per_second: bus bandwidth of the busiest rank; 0 if nothing moved, or no time passed.
    """

    transfer_us: float
    skew_us: float
    last: int | None
    bytes_per_second: float


def travels(ran: Sequence[Sequence[Ran]], mesh: Mesh) -> dict[str, Travel]:
    """Name of a collective -> how it went, from what all ranks ran, by rank."""
    groups: dict[str, dict[tuple[int, ...], Mapping[int, Sequence[Ran]]]] = defaultdict(dict)
    for rank, own in enumerate(ran):
        for each in own:
            group = group_of(rank, each.dimension, mesh)
            if group is not None and group not in groups[each.name]:
                groups[each.name][group] = {one: [r for r in ran[one] if r.name == each.name] for one in group}
    return {
        name: max((_travel(of_ranks) for of_ranks in found.values()), key=lambda each: each.transfer_us)
        for name, found in groups.items()
        if all(len({*map(len, of_ranks.values())}) == 1 for of_ranks in found.values())  # else the ranks disagree
    }


def _travel(of_ranks: Mapping[int, Sequence[Ran]]) -> Travel:
    transfer_us = skew_us = moved = 0.0
    late = dict.fromkeys(of_ranks, 0.0)
    for turn in zip(*of_ranks.values(), strict=True):
        times = [each.us for each in turn]
        transfer_us += min(times)
        skew_us += max(times) - min(times)
        moved += max(each.moved for each in turn)
        for rank, us in zip(of_ranks, times, strict=True):
            late[rank] += max(times) - us
    last = max(late, key=lambda rank: late[rank])
    rate = moved / (transfer_us * 1e-6) if transfer_us > 0 else 0.0
    return Travel(transfer_us, skew_us, last if late[last] > 0 else None, rate)


def exposed(profiles: Iterable[Profile]) -> tuple[int, Profile]:
    """The rank with the most exposed time, and its profile."""
    return max(enumerate(profiles), key=lambda each: each[1].exposed_us)
