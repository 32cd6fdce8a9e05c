"""Which chunks the ring quantiser takes, computed on a CPU: its functions run on tensors of torch, not of Gluon."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.fp8 import ring_chunks
from kernels.fp8.arguments import padded_ends, padded_rows
from kernels.fp8.configs import RingConfig
from kernels.fp8.ring_chunks import Operand, Rows
from kernels.fp8.shapes import Split, splits

CONFIG = RingConfig(rows=16, width=32, held=2, stripes=2)
MOST_CHUNKS = 5
NONE = Operand(None, None, None, None, None)


@dataclass(frozen=True)
class Pointer:
    """Into a vector; nothing outside of it may be asked for."""

    memory: torch.Tensor
    at: Any = 0

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.at + other)

    def __sub__(self, other: Any) -> Pointer:
        return self + -other


def _load(pointer: Pointer, mask: Any, other: Any) -> torch.Tensor:
    at, mask = torch.broadcast_tensors(torch.as_tensor(pointer.at), torch.as_tensor(mask))
    assert (~mask | ((at >= 0) & (at < len(pointer.memory)))).all(), "foreign memory"
    inside = at.clamp(0, max(len(pointer.memory) - 1, 0))
    found = pointer.memory[inside] if len(pointer.memory) else torch.zeros_like(at)
    return torch.where(mask, found, torch.as_tensor(other)).int()


def _store(pointer: Pointer, value: torch.Tensor, mask: torch.Tensor) -> None:
    pointer.memory[pointer.at[mask]] = value[mask]


def _of_two(function: Any) -> Any:
    return lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))


LANGUAGE = SimpleNamespace(
    int32=torch.int32,
    num_warps=lambda: 4,
    arange=lambda low, high, layout: torch.arange(low, high, dtype=torch.int32),
    zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
    load=_load,
    store=_store,
    where=lambda mask, a, b: torch.where(torch.as_tensor(mask), torch.as_tensor(a), torch.as_tensor(b)),
    minimum=_of_two(torch.minimum),
    maximum=_of_two(torch.maximum),
    cdiv=lambda a, b: (a + b - 1) // b,
    sum=lambda x, axis: x.sum(axis),
    max=lambda x, axis: x.amax(axis),
    associative_scan=lambda x, axis, add: x.cumsum(axis, dtype=torch.int32),
)


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_add", "_cut", "_ends", "table_of", "chunk_of", "operand_of"):
        monkeypatch.setattr(ring_chunks, name, getattr(ring_chunks, name).fn)
    monkeypatch.setattr(ring_chunks, "_table_layout", lambda groups, warps: None)
    monkeypatch.setattr(ring_chunks, "gl", LANGUAGE)


def taken(split: Split, padded: bool, widths: tuple[int, ...] = (96,)) -> tuple[list[Any], torch.Tensor, Any]:
    """All chunks in the order of items, padded_offs, and the table."""
    offs = split.offs("cpu")
    buffer = torch.full_like(offs, -1)
    code_rows = padded_rows(split.rows, split.groups) if padded else -(-split.rows // 16) * 16
    written = Pointer(buffer) if padded else None
    rows = Rows(Pointer(offs), written, torch.tensor(split.groups), torch.tensor(code_rows), 0, MOST_CHUNKS)
    first, second = Operand(1, 1, 1, widths[0], 1), NONE
    if len(widths) == 2:
        second = Operand(2, 2, 2, widths[1], 2)
    groups = max(32, 1 << (split.groups - 1).bit_length())
    table = ring_chunks.table_of(rows, first, second, CONFIG, groups, padded)
    items = range(int(table.chunks * table.all_stripes))
    chunks = [ring_chunks.chunk_of(torch.tensor(item), rows, table, CONFIG, groups) for item in items]
    return (
        [(chunk, ring_chunks.operand_of(chunk.stripe, first, second, table, CONFIG)) for chunk in chunks],
        buffer,
        table,
    )


SPLITS = [
    *splits(hot_rows=256),
    Split("256", tuple(group % 5 + 1 if group % 67 == 3 or group in (0, 255) else 0 for group in range(256)), 40),
    Split("all", tuple(range(32)), 3),  # as many as the table has
]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_chunks_are_all_rows_of_all_panels_once(split: Split, padded: bool) -> None:
    found, written, table = taken(split, padded)
    places = {(int(chunk.stripe), int(chunk.place)) for chunk, _ in found}
    assert places == set(product(range(3), range(int(table.chunks))))
    assert len(found) == len(places)
    offs = split.offs("cpu")
    ends = padded_ends(offs) if padded else offs
    starts = [0, *offs.tolist()]
    begins = [0, *ends.tolist()]
    if padded:
        assert torch.equal(written, ends)
    rows = padded_rows(split.rows, split.groups) if padded else -(-split.rows // 16) * 16
    covered = [(begins[group], begins[group] + offs[group].item() - starts[group]) for group in range(split.groups)]
    covered.append((begins[-1], rows))  # the rest of the buffer
    for group, (start, end) in enumerate(covered):
        own = [chunk for chunk, _ in found if chunk.group == group and chunk.stripe == 0]
        borders = sorted((int(chunk.first + chunk.low), int(chunk.first + chunk.high)) for chunk in own)
        if group == split.groups and start == end:
            assert own == []
            continue
        assert borders[0][0] == start
        assert borders[-1][1] == end
        assert all(one[1] == other[0] for one, other in pairwise(borders))
        assert {int(chunk.number) for chunk in own} == set(range(len(own)))
        for chunk in own:
            assert chunk.chunks == len(own) <= MOST_CHUNKS
            assert chunk.first % 16 == 0
            assert (chunk.start, chunk.end, chunk.gap) == (start, end, begins[group] - starts[group])
            assert len({int(other.place - other.number) for other in own}) == 1


def test_stripes_of_two_operands_lie_side_by_side() -> None:
    found, _, _ = taken(Split("", (40, 8)), padded=False, widths=(80, 64))
    seen = {int(chunk.stripe): (own.x_ptr, int(pair0), int(both)) for chunk, (own, pair0, both) in found}
    assert seen == {0: (1, 0, 0), 1: (1, 16, 16), 2: (1, 32, 32), 3: (2, 0, 40), 4: (2, 16, 56)}


@pytest.mark.parametrize("sizes", [(30, -20, 10), (100, 0), (-5, 20)])
def test_wrong_ends_stay_in_the_buffer(sizes: tuple[int, ...]) -> None:
    """The caller's error, whose result is any."""
    split = Split("", sizes, unused=32 - sum(sizes))
    for chunk, _ in taken(split, padded=False)[0]:
        assert 0 <= chunk.start <= chunk.end <= 32
        assert chunk.first + chunk.high <= 32
