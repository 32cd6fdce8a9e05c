"""Facts of compiled kernels."""

from __future__ import annotations

import json

import msgspec
import torch

from perfguard.measure.binaries.call_binaries import named
from perfguard.measure.binaries.compiler import Job, facts_of
from perfguard.measure.binaries.kernel_facts import Facts
from perfguard.model.call import Call
from tests.measure.binaries.test_kernel_code import A, B, X
from tests.measure.metrics.binaries import PRODUCT, SCALE, Reader

BOTH = ("sm_90", "gfx942")


def facts(reader: Reader, call: Call, target: str = "sm_90") -> dict[str, Facts]:
    """Kernel -> its facts."""
    (found,) = reader.follow(call, (target,))
    jobs = {name: Job(reader.compiler, target, launch) for name, launch in named(found.recording.launches)}
    made = facts_of(jobs.values())
    return {name: made[job] for name, job in jobs.items()}


def test_every_target_describes_the_kernel(reader: Reader) -> None:
    call = reader.call(SCALE, X)
    found = {target: facts(reader, call, target)["scale_kernel"] for target in BOTH}
    for each in found.values():
        assert each.load_bits == each.store_bits == 128.0
        assert (each.error, each.spills, each.special, each.fp64) == ("", 0, [], 0)
        assert 0 < each.registers < 64
        assert 10 < each.instructions < 100
    assert found["sm_90"].resident_warps == 64
    assert found["sm_90"].binary != found["gfx942"].binary


def test_a_comment_costs_nothing(reader: Reader) -> None:
    source = SCALE.replace("x * factor", "x * factor - 3.0")
    before = facts(reader, reader.call(source, X, name="kernels_of_a_comment"))
    compiled = reader.compiler.compiled
    commented = source.replace("    x = tl.load", "    # every value\n    x = tl.load")
    assert facts(reader, reader.call(commented, X, name="kernels_of_a_comment")) == before
    assert reader.compiler.compiled == compiled


# Tiles of 4 rows by 32 columns of float32: a row is four whole sectors.
WAYS = {
    "rows": ("r[:, None] * stride + c[None, :]", 32.0),
    "columns": ("r[:, None] + c[None, :] * stride", 16.0),  # runs of 4 values, half a sector
    "one row down a column": ("0 * r[:, None] + c[None, :] * stride", 4.0),
    "every second": ("r[:, None] * stride + 2 * c[None, :]", 16.0),
    "reversed": ("r[:, None] * stride + 31 - c[None, :]", 32.0),
    "transposed": ("tl.trans(c[:, None] + r[None, :] * stride)", 32.0),
    "clamped": ("r[:, None] * stride + tl.minimum(c, n)[None, :]", 32.0),
    # Rows that an index names are near along their columns; the index itself, four values, is half a sector.
    "gathered": ("tl.load(index + r)[:, None] * stride + c[None, :]", round(32 * (512 + 16) / (512 + 32), 1)),
    "wrapped rows": ("(r % n)[:, None] * stride + c[None, :]", 32.0),
    "hinted": ("r[:, None] * stride + tl.max_contiguous(c % n, 32)[None, :]", 32.0),
    "hidden": ("r[:, None] * stride + (c % n)[None, :]", None),
}
HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def store_kernel(out, index, n, stride, WAY: tl.constexpr):
    r, c = tl.arange(0, 4), tl.arange(0, 32)
"""
TAIL = """
    tl.store(out + at, 1.0)


@triton.jit
def sum_kernel(x, out, n, stride):
    r, c = tl.arange(0, 4), tl.arange(0, 32)
    total = tl.zeros((4, 32), tl.float32)
    at = x + r[:, None] * stride + c[None, :]
    for _ in range(0, n, 32):
        total += tl.load(at)
        at += 32
    tl.store(out + c, tl.sum(total, 0))


def call(x, way="rows"):
    out = torch.empty_like(x)
    if x.device.type == "cpu":
        return out.fill_(1.0)
    index = torch.zeros(4, dtype=torch.int32, device=x.device)
    store_kernel[(1,)](out, index, 32, x.stride(0), way)
    sum_kernel[(1,)](x, out, x.shape[1], x.stride(0))
    return out
"""
SECTORS = HEAD + "".join(f"    if WAY == {way!r}:\n        at = {at}\n" for way, (at, _) in WAYS.items()) + TAIL


def test_used_sectors_follow_from_the_steps_of_addresses(reader: Reader) -> None:
    ways = list(WAYS)
    call = reader.call(SECTORS, torch.randn(4, 64), configurations=[{"way": way} for way in ways])
    found = {name: each.sector_bytes for name, each in facts(reader, call, "gfx942").items()}
    assert found.pop("sum_kernel") == 32.0  # the pointers are carried by a loop
    names = {"store_kernel": "rows"} | {f"store_kernel@{ways.index(way)}": way for way in ways[1:]}
    assert found == {name: WAYS[way][1] or 0.0 for name, way in names.items()}


def test_overflow_checks_that_nothing_asserts_are_in_no_binary(reader: Reader) -> None:
    """The compiling process leaves them out of options without `debug`."""
    for target in BOTH:
        (found,) = reader.follow(reader.call(PRODUCT, A, B), (target,))
        (launch,) = found.recording.launches
        data = json.loads(launch.data)
        assert data["options"]["sanitize_overflow"]
        assert not data["options"].pop("debug")
        jobs = [
            Job(reader.compiler, target, each)
            for each in (launch, msgspec.structs.replace(launch, data=json.dumps(data)))
        ]
        made = facts_of(jobs)
        assert made[jobs[0]] == made[jobs[1]]


def test_a_record_of_constants_is_compiled_elsewhere(reader: Reader) -> None:
    """As one parameter, whose values get their names back in the kernel: Triton writes down the plain tuple."""
    source = SCALE.replace("factor, BLOCK: tl.constexpr):", "factor, sizes: tl.constexpr):").replace(
        "    at = tl", "    BLOCK: tl.constexpr = named(Sizes, sizes).block\n    at = tl"
    )
    source = source.replace("BLOCK=block, num_warps", "sizes=Sizes(block, 'wide'), num_warps")
    record = (
        "from typing import NamedTuple\n\n\nclass Sizes(NamedTuple):\n    block: int\n    entry: str\n\n\n"
        "@triton.constexpr_function\ndef named(record, values):\n    return record(*values)\n\n\n@triton.jit\n"
    )
    call = reader.call(source.replace("@triton.jit\n", record), X)
    for target in BOTH:
        assert facts(reader, call, target)["scale_kernel"].error == ""
