"""Lists of the places that ask for a row, and sums over them: against a stable sort, and where lists are long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from kernels.operators import configs, lists, padded_index_gather, scatter
from kernels.operators.counting import CHUNKS, STEP
from tests.kernels.operators import gradients
from tests.kernels.paths import KernelPath

LONG = configs.list_candidates("cpu", 5)[0].long  # from so many places on a list is cut into parts
SLOTS = configs.list_candidates("cpu", 5)[0].slots  # of a row's table


def spread(count: int, rows: int) -> torch.Tensor:
    return torch.randint(rows, (count,), generator=torch.Generator().manual_seed(count))


INDICES = {
    # name: rows, index
    "one-row": (1, torch.zeros(3, dtype=torch.int64)),
    "one-pass": (255, spread(300, 255)),
    "two-passes": (256, spread(300, 256)),  # the key of what is out of range is the first of two digits
    "three-passes": (70_000, spread(300, 70_000)),
    "chunks-of-several-steps": (9, spread(CHUNKS * STEP + 1, 9)),
    "alternating": (600, torch.tensor([5, 5 + 256] * 100)),  # the same low digit
    "all-in-one-row": (300, torch.full((5 * LONG + 3,), 299)),
    "out-of-range": (4, torch.tensor([-1, 3, 4, 3, 2**40, 0, -(2**40)])),
}


@pytest.mark.parametrize("name", INDICES)
def test_lists_are_a_stable_sort(name: str, triton_path: KernelPath) -> None:
    rows, index = INDICES[name]
    inside = (index >= 0) & (index < rows)
    expected = torch.argsort(torch.where(inside, index, rows), stable=True)
    there = index.to(triton_path.device)
    tables = lists._tables_of(there, rows, configs.list_candidates("cpu", 5)[0])
    tables.is_full.fill_(1)
    found = lists._sorted(there, tables, overlap=False)
    assert torch.equal(found.order.cpu().long(), expected)
    counts = torch.bincount(index[inside], minlength=rows)
    asked = counts > 0
    ends = counts.cumsum(0)
    assert torch.equal(found.ends.cpu().long()[asked], ends[asked])
    assert torch.equal(found.starts.cpu().long()[asked], (ends - counts)[asked])
    assert not found.ends[~asked.to(there.device)].any()


# Which lengths of lists one after the other: what is cut, and where, depends on how they lie to the parts.
LENGTHS = {
    "no-table-full": [SLOTS, 0, 1, SLOTS],
    "a-table-full": [SLOTS, SLOTS + 1, 0, 2],
    "as-long-as-a-part": [LONG, LONG],
    "one-more": [LONG + 1, 0, LONG + 1],
    "begin-at-a-part": [LONG, 3 * LONG, LONG],
    "end-in-one-part": [LONG // 2, 2 * LONG, 3, 2 * LONG + 1],
    "nothing-but": [9 * LONG],
    "short-in-between": [1, 2 * LONG + 1, 0, 2, LONG + 1, 1],
    "out-of-range-is-longest": [2, LONG + 2, -3 * LONG],
}


def asking(sizes: Sequence[int]) -> torch.Tensor:
    """So many places for each row, below 0 for none, in any order."""
    index = torch.cat([torch.full((abs(size),), row if size > 0 else -1) for row, size in enumerate(sizes)])
    return index[torch.randperm(len(index))]


@pytest.mark.parametrize("candidate", [0, 1])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_long_lists(lengths: str, candidate: int, triton_path: KernelPath) -> None:
    """Small whole numbers, whose sums are exact: every place counts once, in the right row."""
    sizes = LENGTHS[lengths]
    index = asking(sizes).to(triton_path.device)
    x = torch.randint(-8, 9, (len(index), 21)).float().to(index.device)
    out = torch.full((len(sizes), 21), torch.nan, device=index.device)
    lists.sum_by_index(x, index, out, candidate)
    inside = index >= 0
    assert torch.equal(out, torch.zeros_like(out).index_add_(0, index[inside], x[inside]))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_slots_are_taken_in_any_order(lengths: str, triton_path: KernelPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which slot of its row's table a place gets is chance on a GPU: it does not reach the sums' bits."""
    sizes = LENGTHS[lengths]
    index = asking(sizes).to(triton_path.device)
    x = torch.randn(len(index), 21, device=index.device)
    expected, got = (torch.full((len(sizes), 21), torch.nan, device=index.device) for _ in range(2))
    lists.sum_by_index(x, index, expected, None)
    made = lists._tables_of
    shuffled = []

    def shuffling(*arguments: Any) -> lists.Tables:
        tables = made(*arguments)
        for row, count in zip(tables.table, tables.asked.tolist(), strict=True):
            used = row[:count]
            used.copy_(used[torch.randperm(len(used))])
            shuffled.append(len(used))
        return tables

    monkeypatch.setattr(lists, "_tables_of", shuffling)
    lists.sum_by_index(x, index, got, None)
    assert max(shuffled) > 1
    assert torch.equal(got, expected)


@pytest.mark.parametrize("most", [SLOTS, SLOTS + 1])
def test_places_are_sorted_where_a_table_is_full(most: int, triton_path: KernelPath) -> None:
    """And only there: elsewhere nothing is written to the lists."""
    index = torch.tensor([2] * most + [0, 2**40, -1]).to(triton_path.device)
    config = configs.list_candidates("cpu", 5)[0]
    tables = lists._tables_of(index, 3, config)
    assert tables.asked.tolist() == [1, 0, most]
    assert tables.is_full.item() == (most > SLOTS)
    tables.ends.fill_(-7)
    lists._sorted(index, tables, overlap=False)
    assert (tables.ends.tolist() == [-7, -7, -7]) == (most <= SLOTS)


def test_a_hot_row_is_summed_in_fp32(triton_path: KernelPath) -> None:
    """Nearly all places ask for one row, whose gradient is as good as that of the others, and the same again."""
    x = torch.zeros(40, 6, dtype=torch.bfloat16, device=triton_path.device, requires_grad=True)
    index = spread(600, 40)
    index[60:] = 7
    index = index.to(x.device)
    upstream = torch.rand(600, 6).add(0.5).to(x)
    gather = partial(padded_index_gather, pad_to=1)
    _, gradient = gradients(gather, (x, index), upstream)
    expected = torch.zeros(40, 6, dtype=torch.float64, device=x.device).index_add_(0, index, upstream.double())
    torch.testing.assert_close(gradient.double(), expected, rtol=2**-8, atol=0)
    assert torch.equal(gradient, gradients(gather, (x, index), upstream)[1])


@pytest.mark.parametrize("groups", [1, 300])
def test_places_whichever_way_they_are_found(
    groups: int, triton_path: KernelPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, and sorted where the groups are too many to count."""
    count = CHUNKS * STEP + 5  # a chunk is more than a step
    expert = spread(count, groups).to(triton_path.device)
    find = partial(scatter.places_of, expert, groups, 16, count + 16 * groups)
    counted = find()
    monkeypatch.setattr(scatter, "MOST_GROUPS", 0)
    for one, expected in zip(counted, find(), strict=True):
        assert torch.equal(one, expected)
