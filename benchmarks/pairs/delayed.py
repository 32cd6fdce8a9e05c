"""A kernel that takes as long as it is told, and delays tuned on this device. The pairs' project holds a copy.

    python -m benchmarks.pairs.delayed PLAN DEVICE MICROSECONDS,… PERCENT,…

A chain of dependent multiply-adds, one link after another: its time is linear in the links, so that two lengths tell
all others. How much slower each delay is in truth is measured, in blocks by turns.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfguard.measure import collector_paused
from perfguard.measure.devices import open_device
from perfguard.measure.devices.device import Device
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Workload
from perfguard.testing import fake

COUNT, BLOCK = 2**16, 128  # values; one a thread, so that the chain alone takes time
SHORT, LONG = 8_000, 64_000  # links: much longer than a launch
PREHEAT_US = 1e6  # clocks rise from idle
QUADS = 4
FAKE_CALL_US, FAKE_LINK_US = 2.0, 0.002

Block = Callable[[int], float]  # of so many links: one block, µs a call


@triton.jit(do_not_specialize=["links"])  # one binary for all lengths
def chain_kernel(x_ptr, out_ptr, links, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    half = 0.5 * tl.load(x_ptr + at)
    y = half
    for _ in range(links):
        y = 0.5 * y + half
    tl.store(out_ptr + at, y)


def numbers(device: torch.device) -> Tensor:
    """x (COUNT,) float32 of bfloat16's digits: of more a chain ends beside every second number, at a tie."""
    return torch.randn(COUNT, device=device).bfloat16().float()


def chain(x: Tensor, links: int) -> Tensor:
    """x (COUNT,) float32, from whose half each link goes half of the way to x."""
    if fake.current() is not None:
        fake.launch("chain", us=FAKE_CALL_US + FAKE_LINK_US * links, binary="chain")
        return expected(x, links)
    out = torch.empty_like(x)
    chain_kernel[(COUNT // BLOCK,)](x, out, links, BLOCK=BLOCK, num_warps=4)
    return out


def expected(x: Tensor, links: int) -> Tensor:
    """The chain's end, without a chain."""
    return x * (1 - 2.0 ** -(links + 1))


def tuned(block: Block, lengths_us: Sequence[int], percents: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Of each length and delay the links without and with it, how much slower that is, and the standard error."""
    short_us, long_us = (statistics.median(block(links) for _ in range(3)) for links in (SHORT, LONG))
    link_us = max((long_us - short_us) / (LONG - SHORT), 1e-6)
    for length_us in lengths_us:
        links = max(1, round((length_us - short_us) / link_us) + SHORT)
        for percent in percents:
            tail = math.ceil(percent / 100 * length_us / link_us)
            slower, error = slowdown(block, links, links + tail) if tail else (0.0, 0.0)
            name = f"{length_us}us-{percent}pct"
            yield {"name": name, "percent": percent, "links": links, "tail": tail, "slower": slower, "error": error}


def slowdown(block: Block, before: int, after: int) -> tuple[float, float]:
    """In blocks by turns, there and back, so that a steady drift cancels."""
    logs = []
    for _ in range(QUADS):
        first, second, third, fourth = (math.log(block(links)) for links in (before, after, after, before))
        logs.append((second + third - first - fourth) / 2)
    return math.expm1(statistics.fmean(logs)), statistics.stdev(logs) / math.sqrt(QUADS)


def blocks_on(device: Device) -> Block:
    x = torch.ones(COUNT, device=device.torch_device)
    # A captured graph holds memory; two lengths take turns.
    meter = functools.lru_cache(maxsize=2)(
        lambda links: prepare_device_time(Workload(lambda: chain(x, links), "warm"), device)
    )

    def block(links: int) -> float:
        return next(us for _ in range(3) if (us := meter(links).block()) is not None)

    return block


def main(path: Path, name: str, *sizes: str) -> None:
    device = open_device(name)
    device.settle()
    with collector_paused():
        block, started = blocks_on(device), device.now_us()
        while device.now_us() - started < PREHEAT_US:
            block(LONG)
        plan = list(tuned(block, *([int(size) for size in each.split(",")] for each in sizes)))
    path.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
