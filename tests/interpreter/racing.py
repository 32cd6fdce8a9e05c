"""Kernels that rely on what nothing promises, and such as only look like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from tests.interpreter import jit

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Example:
    """`line`: what the line that is to be named contains; empty where nothing is wrong."""

    fn: Function
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    reference: Function
    line: str = ""


def rows(dtype: torch.dtype = torch.float32, columns: int = 50) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(8, columns).to(dtype),)


def integers() -> tuple[torch.Tensor, ...]:
    return (torch.randint(1, 9, (8, 50), dtype=torch.int32),)


def _rows_of(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), dtype=torch.float32)
    kernel[(len(x),)](x, out, x.shape[1], B=64)
    return out


@jit
def sum_open(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n)
    tl.store(o + tl.program_id(0), tl.sum(v.to(tl.float32), 0))


@jit
def weighted_open(x, level, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * B + tl.arange(0, B)
    w = tl.where(at < n, tl.load(level + at), 0.0)  # lanes without an element are read, and not used
    tl.store(o + at, tl.load(x + at, mask=at < n, other=0.0) * w, mask=at < n)


@jit
def weighted(x, level, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * B + tl.arange(0, B)
    w = tl.load(level + at, mask=at < n, other=0.0)
    tl.store(o + at, tl.load(x + at, mask=at < n, other=0.0) * w, mask=at < n)


def weighted_by(kernel: Any, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    x, level = x.contiguous(), level.contiguous()
    out = torch.empty_like(x)
    kernel[(-(-len(x) // 16),)](x, level, out, len(x), B=16)
    return out


@jit
def max_open(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n)
    tl.store(o + tl.program_id(0), tl.max(v, 0).to(tl.float32))


@jit
def dot_open(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.arange(0, 8), tl.arange(0, B)
    v = tl.load(x + row[:, None] * n + at[None, :], mask=(at < n)[None, :])
    ones = tl.full([B, 16], 1.0, tl.float32)
    tl.store(o + row, tl.max(tl.dot(v, ones), 1))


@jit
def gather_open(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    k = tl.load(x + tl.program_id(0) * n + at, mask=at < n)
    v = tl.load(x + k, mask=None)
    tl.store(o + tl.program_id(0), tl.sum(tl.where(at < n, v, 0), 0).to(tl.float32))


@jit
def after_open(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    before = tl.load(x + row * n - 1, mask=row > 0)
    tl.store(o + row, before)


@jit
def after_zero(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    before = tl.load(x + row * n - 1, mask=row > 0, other=0)
    one = tl.load(x + row * n - 1 + tl.arange(0, 1), mask=(row > 0) & (tl.arange(0, 1) == 0), other=0.0)
    tl.store(o + row, (before + tl.sum(one, 0)) / 2)


def ends_before(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x.new_zeros(1), x[:-1, -1]))


@jit
def add_up(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.sum(tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0), 0)
    tl.store(o, tl.load(o) + v)


@jit
def largest_of_all(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.max(tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-1e9), 0)
    if tl.load(o) < v:
        tl.store(o, v)


@jit
def shift(x, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(x + at, v, mask=at < n)


@jit
def means_then_centred(x, means, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0)
    tl.store(means + tl.program_id(0), tl.sum(v, 0) / n)
    first = tl.load(means)
    tl.store(o + tl.program_id(0) * n + at, v - first, mask=at < n)


@jit
def scatter(x, ids, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    to = tl.load(ids + tl.program_id(0))
    tl.store(o + to * n + at, tl.load(x + tl.program_id(0) * n + at, mask=at < n), mask=at < n)


@jit
def running(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, B)
    before = tl.load(o + (row - 1) * n + at, mask=(at < n) & (row > 0), other=0.0)
    tl.store(o + row * n + at, before + tl.load(x + row * n + at, mask=at < n), mask=at < n)


@jit
def count(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0)
    for bin in range(9):
        tl.store(o + bin, tl.load(o + bin) + tl.sum((v == bin) & (at < n), 0))


def on_zeros(kernel: Any, size: int, dtype: torch.dtype = torch.float32) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(size, dtype=dtype)
        kernel[(len(x),)](x, out, x.shape[1], B=64)
        return out

    return run


def shifted(x: torch.Tensor) -> torch.Tensor:
    out = x.flatten().clone()
    shift[(-(-out.numel() // 32),)](out, out.numel(), B=32)
    return out


def centred(x: torch.Tensor) -> torch.Tensor:
    means, out = torch.empty(len(x)), torch.empty_like(x)
    means_then_centred[(len(x),)](x, means, out, x.shape[1], B=64)
    return out


def scattered(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    scatter[(len(x),)](x, ids, out, x.shape[1], B=64)
    return out


def summed_up(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    running[(len(x),)](x, out, x.shape[1], B=64)
    return out


def last_of_each(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row, to in zip(x, ids.tolist(), strict=True):
        out[to] = row
    return out


BAD = {
    "sum": Example(lambda x: _rows_of(sum_open, x), rows(), lambda x: x.sum(1), "v = tl.load(x"),
    "sum of bfloat16": Example(
        lambda x: _rows_of(sum_open, x), rows(torch.bfloat16), lambda x: x.float().sum(1), "v = "
    ),
    "sum of integers": Example(lambda x: _rows_of(sum_open, x), integers, lambda x: x.float().sum(1), "v = tl.load(x"),
    "maximum": Example(lambda x: _rows_of(max_open, x), rows(), lambda x: x.amax(1), "v = tl.load(x"),
    "end of the row before": Example(
        lambda x: _rows_of(after_open, x), rows(), ends_before, "before = tl.load(x + row * n - 1, mask=row > 0)"
    ),
    "dot": Example(lambda x: _rows_of(dot_open, x), rows(), lambda x: x.sum(1), "v = tl.load(x"),
    "gather": Example(
        lambda x: _rows_of(gather_open, x), integers, lambda x: x.flatten()[x].sum(1).float(), "v = tl.load(x + k"
    ),
    "lost sums": Example(on_zeros(add_up, 1), rows(), lambda x: x.sum().view(1), "tl.store(o, tl.load(o) + v)"),
    "lost maxima": Example(on_zeros(largest_of_all, 1), rows(), lambda x: x.amax().view(1), "tl.load(o) < v"),
    "lost counts": Example(
        on_zeros(count, 9, torch.int32),
        integers,
        lambda x: torch.bincount(x.flatten(), minlength=9).int(),
        "tl.store(o",
    ),
    "shift in place": Example(shifted, rows(), lambda x: torch.cat((x.flatten()[1:], x.new_zeros(1))), "v = tl.load"),
    "result of another program": Example(centred, rows(), lambda x: x - x[0].mean(), "first = tl.load(means)"),
    "two rows to one": Example(
        scattered, lambda: (torch.randn(8, 50), torch.tensor([3, 1, 3, 0, 2, 2, 5, 4])), last_of_each, "tl.store(o + to"
    ),
    "running sum": Example(summed_up, rows(), lambda x: x.cumsum(0), "before = tl.load"),
}


# -- and what only looks like it ---------------------------------------------------------------------------------------


@jit
def softmax(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
    p = tl.exp(v - tl.max(v, 0))
    tl.store(o + tl.program_id(0) * n + at, p / tl.sum(p, 0), mask=at < n)


@jit
def doubled(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * n + tl.arange(0, B)
    v = tl.load(x + at, mask=tl.arange(0, B) < n)
    tl.store(o + at, v + v, mask=tl.arange(0, B) < n)


@jit
def chosen(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n)
    tl.store(o + tl.program_id(0), tl.sum(tl.where(at < n, v, 0.0).to(tl.float32), 0))


@jit
def sums_by_atomics(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.sum(tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0).to(tl.float32), 0)
    tl.atomic_add(o, v)


@jit
def sums_by_a_lock(x, o, lock, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.sum(tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0).to(tl.float32), 0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(o, tl.load(o) + v)
    tl.atomic_xchg(lock, 0)


@jit
def running_by_tickets(x, o, ticket, done, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    row = tl.atomic_add(ticket, 1)
    while tl.atomic_add(done, 0) < row:
        pass
    before = tl.load(o + (row - 1) * n + at, mask=(at < n) & (row > 0), other=0.0)
    tl.store(o + row * n + at, before + tl.load(x + row * n + at, mask=at < n), mask=at < n)
    tl.atomic_add(done, 1)


@jit
def running_in_order(x, o, done, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    row = tl.program_id(0)
    while tl.atomic_add(done, 0) < row:
        pass
    before = tl.load(o + (row - 1) * n + at, mask=(at < n) & (row > 0), other=0.0)
    tl.store(o + row * n + at, before + tl.load(x + row * n + at, mask=at < n), mask=at < n)
    tl.atomic_add(done, 1)


@jit
def last_one_adds(x, parts, o, done, n, rows, B: tl.constexpr, R: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    v = tl.sum(tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0).to(tl.float32), 0)
    tl.store(parts + tl.program_id(0), v)
    if tl.atomic_add(done, 1) == rows - 1:
        r = tl.arange(0, R)
        tl.store(o, tl.sum(tl.load(parts + r, mask=r < rows, other=0.0), 0))


@jit
def persistent(x, o, rows, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        tl.store(o + row.to(tl.int64) * n + at, tl.load(x + row * n + at, mask=at < n) * 2, mask=at < n)


@jit
def in_place(x, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@jit
def twice_in_place(x, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@jit
def same_to_all(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    tl.store(o + at, at.to(tl.float32), mask=at < n)


@jit
def matmul(a, b, o, M, N, K, B: tl.constexpr):  # type: ignore[no-untyped-def]
    m, c = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        left = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + c[None, :], mask=(k[:, None] < K) & (c[None, :] < N), other=0.0)
        acc = tl.dot(left, right, acc)
    tl.store(o + m[:, None] * N + c[None, :], acc, mask=(m[:, None] < M) & (c[None, :] < N))


def like(kernel: Any) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[(len(x),)](x, out, x.shape[1], B=64)
        return out

    return run


def with_flags(kernel: Any, flags: int, *, whole: bool) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x) if whole else torch.zeros(1)
        kernel[(len(x),)](x, out, *(torch.zeros(1, dtype=torch.int32) for _ in range(flags)), x.shape[1], B=64)
        return out

    return run


def added_by_the_last(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(1)
    done = torch.zeros(1, dtype=torch.int32)
    last_one_adds[(len(x),)](x, torch.empty(len(x)), out, done, x.shape[1], len(x), B=64, R=8)
    return out


def by_few(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    persistent[(3,)](x, out, len(x), x.shape[1], B=64)
    return out


def changed(kernel: Any) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        kernel[(-(-x.numel() // 64),)](out, x.numel(), B=64)
        return out

    return run


def equal_stores(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[1])
    same_to_all[(len(x),)](x, out, x.shape[1], B=64)
    return out


def multiplied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), y.shape[1])
    matmul[(-(-len(x) // 16), -(-y.shape[1] // 16))](x, y, out, len(x), y.shape[1], x.shape[1], B=16)
    return out


def _good() -> dict[str, Example]:
    found = {
        "sums by a lock": Example(with_flags(sums_by_a_lock, 1, whole=False), rows(), lambda x: x.sum().view(1)),
        "sums by the last program": Example(added_by_the_last, rows(), lambda x: x.sum().view(1)),
        "running sum by tickets": Example(with_flags(running_by_tickets, 2, whole=True), rows(), lambda x: x.cumsum(0)),
        "waits for the one before": Example(with_flags(running_in_order, 1, whole=True), rows(), lambda x: x.cumsum(0)),
        "end of the row before, 0": Example(lambda x: _rows_of(after_zero, x), rows(), ends_before),
        "two of one value": Example(equal_stores, rows(), lambda x: torch.arange(x.shape[1]).float()),
        "rows to others": Example(
            scattered, lambda: (torch.randn(8, 50), torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])), last_of_each
        ),
    }
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for columns in (50, 64, 33):
            given = rows(dtype, columns)
            found[f"softmax {name} {columns}"] = Example(like(softmax), given, lambda x: x.softmax(-1))
            found[f"doubled {name} {columns}"] = Example(like(doubled), given, lambda x: x + x)
        found[f"chosen lanes {name}"] = Example(lambda x: _rows_of(chosen, x), given, lambda x: x.float().sum(1))
        found[f"by few programs {name}"] = Example(by_few, given, lambda x: x * 2)
        found[f"in place {name}"] = Example(changed(in_place), given, lambda x: x * 2)
        found[f"twice in place {name}"] = Example(changed(twice_in_place), given, lambda x: (x + 1) * 2)
        found[f"sums by atomics {name}"] = Example(
            on_zeros(sums_by_atomics, 1), given, lambda x: x.float().sum().view(1)
        )
        found[f"matmul {name}"] = Example(
            multiplied, lambda dtype=dtype: (torch.randn(20, 33).to(dtype), torch.randn(33, 24).to(dtype)),
            lambda x, y: x.float() @ y.float(),
        )  # fmt: skip
    return found


GOOD = _good()
