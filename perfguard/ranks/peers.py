"""Data that the ranks of one test exchange, so that all take the same decisions.

Each rank puts its part into the store of the launch, and takes the parts of the others. No collective is issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from perfguard.model.errors import MeasurementError
from perfguard.ranks.rank_group import RankGroup

END = "the end of the test"


class OutOfStep(MeasurementError):
    """Another rank is elsewhere in the test: at its end, or at another decision."""


@dataclass
class Peers(RankGroup):
    """All ranks of a test, with whom this one exchanges data. Exchanges have the same numbers on all ranks."""

    in_step = True
    _number: int = 0

    def exchange(self, purpose: str, data: object = None) -> list[Any]:
        """The data of all ranks, once every rank has given its part.

        Raises:
            OutOfStep: a rank exchanges for another purpose.
            DistStoreError: a rank does not come within the limit of a test.
        """
        parts = self._parts(purpose, data)
        if purpose == END:  # Another rank may learn only now that this one has ended.
            while any(theirs != END for theirs, _ in parts):
                parts = self._parts(purpose, data)
        for rank, (theirs, _) in enumerate(parts):
            if theirs != purpose:
                raise OutOfStep(
                    f"rank {rank} is at {theirs}, rank {self.rank} at {purpose}; every rank must make the same calls"
                )
        return [data for _, data in parts]

    def _parts(self, purpose: str, data: object) -> list[tuple[str, Any]]:
        """The purpose and the data of each rank."""
        number, store = self._number, self.store
        keys = [f"part-{number}-{rank}" for rank in range(self.ranks)]
        store.set(keys[self.rank], msgspec.json.encode((purpose, data)))
        store.wait(keys)
        parts = [msgspec.json.decode(part, type=tuple[str, Any]) for part in store.multi_get(keys)]
        if number:  # Every rank has begun this exchange, so it has read the one before.
            store.delete_key(f"part-{number - 1}-{self.rank}")
        self._number += 1
        return parts
