"""The ranks that make a test's calls, by its mark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from perfguard.model.call import ALONE, Call, Ranks
from perfguard.model.errors import UsageError
from perfguard.pytest_plugin.items import mark_of

if TYPE_CHECKING:
    pass

RANK_GUARD = pytest.StashKey[Ranks]()  # Set in a process that is one of several ranks.


class Unmarked(Ranks):
    """One process, unless the test has made a process group itself."""

    def __init__(self, test: str) -> None:
        self.test = test

    def given(self, call: Call) -> Call:
        """The call, in the process group that now exists. This does not load torch."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return ALONE.given(call)
        from perfguard.ranks.rank_group import InGroup

        ranks = InGroup()
        ranks.has_data = distributed.get_backend() != "fake"
        return ranks.given(call)


@contextmanager
def ranks_of(item: pytest.Item) -> Iterator[Ranks]:
    """The ranks of a test, while it runs.

    Raises:
        UsageError: it is marked for several ranks, and this process is none of them.
    """
    mark = mark_of(item)
    if mark.ranks:
        guard = item.config.stash.get(RANK_GUARD, None)
        if guard is None:
            raise UsageError(
                f"{item.nodeid}: runs on {mark.ranks} ranks, and this process is none of them; let pytest run it"
            )
        yield guard
    elif mark.layout:
        from perfguard.ranks.layout import layout_of

        with layout_of(mark.layout) as layout:
            yield layout
    else:
        yield Unmarked(item.nodeid)
