"""Matches the launches of the base with those of the working tree, across renamings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfguard.measure.binaries.call_binaries import named
from perfguard.measure.binaries.launch_recorder import Launch, Recording, specialised, types_of

Kernels = Mapping[str, Sequence[Launch]]  # kernel -> its launches, in the order of the first launches
Named = tuple[str, Launch]


@dataclass(frozen=True)
class Matched:
    """The launches of one pass on one target.

    Attributes:
        pairs: the name in the working tree (`rows`, `rows@1`, `rows/2`), the base's launch, the working tree's.
        unmatched: the base's and the working tree's launches without a counterpart, with their names, but without
            configurations that the call does not choose.
        renamed: the base's kernel -> the working tree's, for all kernels with a counterpart.
    """

    pairs: list[tuple[str, Launch, Launch]]
    unmatched: tuple[list[Named], list[Named]]
    renamed: dict[str, str]


def match(base: Recording, work: Recording) -> Matched:
    """Match kernels by name, or else by their place among the launches and their parameters' types; then match the
    launches of each kernel."""
    before, after = kernels_of(base), kernels_of(work)
    common = before.keys() & after.keys()
    places = _places(after, common)
    renamed = {name: places[place] for place, name in _places(before, common).items() if place in places}
    pairs = [
        pair
        for old, new in renamed.items()
        for pair in _launch_pairs(before[old], after[new])
    ]  # fmt: skip
    names = {id(launch): name for recording in (base, work) for name, launch in named(recording.launches)}
    paired = {id(launch) for pair in pairs for launch in pair}
    unmatched = [
        [
            (names[id(each)], each)
            for launches in kernels.values()
            for each in chosen(launches)
            if id(each) not in paired
        ]
        for kernels in (before, after)
    ]
    return Matched([(names[id(new)], old, new) for old, new in pairs], (unmatched[0], unmatched[1]), renamed)


def kernels_of(recording: Recording) -> dict[str, list[Launch]]:
    """Kernel -> its launches, without those of a walk."""
    by_kernel: dict[str, list[Launch]] = {}
    for launch in recording.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    return by_kernel


def chosen(launches: Sequence[Launch]) -> list[Launch]:
    """A kernel's launches in the plain call; if a tuner chooses, the launches of all configurations."""
    return [each for each in launches if each.configuration is None] or list(launches)


def _places(kernels: Kernels, common: set[str]) -> dict[tuple[object, ...], str]:
    """Place -> kernel. The place is a common name, or the last common kernel before it, its types, and a number."""
    counts: Counter[tuple[object, ...]] = Counter()
    by_place: dict[tuple[object, ...], str] = {}
    last = ""
    for name, launches in kernels.items():
        if name in common:
            last = name
            by_place[name,] = name
        else:
            place = last, json.dumps(types_of(launches[0]))
            counts[place] += 1
            by_place[*place, counts[place]] = name
    return by_place


def _launch_pairs(base: Sequence[Launch], work: Sequence[Launch]) -> list[tuple[Launch, Launch]]:
    """Pair the launches of one kernel by their specialisations, whether or not the plain call chooses them. Of the
    rest, launches of the plain call are paired in order, and so are configurations if both sides have equally many:
    otherwise an inserted configuration would shift the pairs behind it."""
    pairs: list[tuple[Launch, Launch]] = []
    before, after = list(base), list(work)

    def pair(candidates: list[Launch], fits: Callable[[Launch, Launch], bool]) -> None:
        for launch in list(after):
            counterpart = next((each for each in candidates if fits(each, launch)), None)
            if counterpart is not None:
                pairs.append((counterpart, launch))
                after.remove(launch)
                if counterpart in before:
                    before.remove(counterpart)

    pair(before, lambda old, new: _is_plain(old) is _is_plain(new) and specialised(old) == specialised(new))
    pair(before, lambda old, new: _is_plain(old) and _is_plain(new))
    pair(list(base), lambda old, new: specialised(old) == specialised(new))
    known = set(map(specialised, work))
    before = [each for each in before if not _is_plain(each) and specialised(each) not in known]
    after = [each for each in after if not _is_plain(each)]
    return pairs + list(zip(before, after, strict=True)) if len(before) == len(after) else pairs


def _is_plain(launch: Launch) -> bool:
    return launch.configuration is None
