"""The mark `perfguard`: on how many ranks a test runs. Without arguments the test is observed (`items`)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

MARK = "perfguard"
_WORDS = ("ranks", "layout")


@dataclass(frozen=True)
class Mark:
    """The arguments of the mark; 0 where it does not give one.

    Attributes:
        ranks: number of processes that run the test in lock step.
        layout: number of ranks that the test's one process pretends to be part of.
    """

    ranks: int = 0
    layout: int = 0


def mark_of(item: pytest.Item) -> Mark:
    """The item's mark; of several, the one closest to the test.

    Raises:
        UsageError: the mark has another argument, both of them, or a number below 1.
    """
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return Mark()
    written = f"{item.nodeid}: @pytest.mark.perfguard"
    if mark.args:
        raise pytest.UsageError(f"{written}{mark.args!r}: give the number by its name: ranks=2, or layout=64")
    unknown = [word for word in mark.kwargs if word not in _WORDS]
    if unknown:
        raise pytest.UsageError(f"{written}({unknown[0]}=…): no such argument; known: {', '.join(_WORDS)}")
    if len(mark.kwargs) > 1:
        raise pytest.UsageError(
            f"{written}(ranks=…, layout=…): a test runs on real ranks or as one of a layout; leave one out"
        )
    for word, number in mark.kwargs.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise pytest.UsageError(f"{written}({word}={number!r}): give a number of ranks, 1 or more")
    return Mark(**mark.kwargs)
