"""How much times of a processor vary between processes, by the way that they are read: which of them can be judged.

    python -m benchmarks.cpu_noise [--processes 12] [--load 4] [--json FILE]

Fresh processes, one after the other, read the same calls (A/A). Printed is for each call and way the standard deviation
of the logarithm over all processes, in per cent, and the load of the machine. The ways: time on the wall with as many
threads as torch takes by itself; then of the very same samples on one thread, of 1 ms and more for 0.3 s, time on the
wall and CPU time of the process, their median and 10th percentile; then what perfguard judges, `cpu_time_us`. `--load`
keeps so many other processes busy meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.metrics.times import WALL_TIME
from perfguard.measure.timers.cpu import one_thread, used_us

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
SECONDS = 0.3  # of samples
SAMPLE_US = 1_000.0
MOST_CALLS = 2**16
WAYS = ("wall, all threads", "wall median", "wall p10", "CPU median", "CPU p10", "cpu_time_us")

Values = dict[str, dict[str, float]]  # call -> way -> µs per call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12, help="fresh processes that read (default: 12)")
    parser.add_argument("--load", type=int, default=0, help="processes that are kept busy meanwhile (default: none)")
    parser.add_argument("--json", type=Path, help="file that keeps what every process read")
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(values()))
        return 0
    if options.processes < 2:
        parser.error("--processes: two at least, else nothing varies")
    started = time.monotonic()
    with loaded(options.load):
        read, loads = [], []
        for _ in range(options.processes):
            read.append(fresh_process())
            loads.append(os.getloadavg()[0])
    heading = (
        f"{CpuDevice().identity.slug}, {os.cpu_count()} cores, {options.processes} processes, {options.load} busy ones "
        f"beside them, load average {statistics.fmean(loads):.1f}, {time.monotonic() - started:.0f} s, "
        f"{datetime.date.today()}, torch {torch.__version__}"
    )
    print(heading, *table(read), sep="\n")
    if options.json is not None:
        kept = {"heading": heading, "load": options.load, "varies": varies(read), "values": read}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


@contextlib.contextmanager
def loaded(count: int) -> Iterator[None]:
    """Within, `count` processes of one thread do nothing but count."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def fresh_process() -> Values:
    line = [sys.executable, "-m", "benchmarks.cpu_noise", "--read"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    found: Values = json.loads(done.stdout)
    return found


def calls() -> dict[str, Callable[[], object]]:
    """Short ones, long ones, such that compute and such that move memory; all `float32`."""
    torch.manual_seed(0)
    long, wide, out = torch.randn(2 << 20), torch.randn(8 << 20), torch.empty(8 << 20)
    a, b = torch.randn(384, 384), torch.randn(384, 384)
    rows, weight, few = torch.randn(64, 1024), torch.randn(1024), torch.randn(64)
    tokens = torch.randn(512, 1024)
    return {
        "`torch.sin`, 2 Mi": lambda: long.sin(),
        "matmul, 384³": lambda: a @ b,
        "`rms_norm`, 64 x 1024": lambda: F.rms_norm(rows, (1024,), weight),
        "`add`, 64": lambda: few + 1,
        "quantise, 512 x 1024": lambda: quantise(tokens),
        "copy, 32 MiB": lambda: out.copy_(wide),
    }


def quantise(x: Tensor) -> Tensor:
    """Row by row to fp8."""
    return (x * (448 / x.abs().amax(1, keepdim=True))).to(torch.float8_e4m3fn)


def values() -> Values:
    """What this process reads."""
    found: Values = {}
    for name, call in calls().items():
        all_threads = statistics.median(wall for wall, _ in samples(call))
        with one_thread():
            wall, used = zip(*samples(call), strict=True)
        ways = all_threads, statistics.median(wall), low(wall), statistics.median(used), low(used)
        found[name] = dict(zip(WAYS, ways, strict=False))
    device = CpuDevice()
    device.settle()  # as a run of perfguard does before its first case; the process stays so
    for name, call in calls().items():
        (judged,) = read_timed(Subject(run=call), device, skipped={WALL_TIME})
        assert isinstance(judged.value, float)
        found[name][WAYS[-1]] = judged.value
    return found


def samples(call: Callable[[], object]) -> list[tuple[float, float]]:
    """Wall and CPU time of one call, µs, as samples of equally many calls tell."""
    started, warm = time.perf_counter(), 0
    while warm < 5 or time.perf_counter() - started < 0.05:
        call()
        warm += 1
    call_us = 1e6 * (time.perf_counter() - started) / warm
    count = min(MOST_CALLS, max(1, math.ceil(SAMPLE_US / call_us)))
    found = []
    end = time.perf_counter() + SECONDS
    while len(found) < 10 or time.perf_counter() < end:
        wall, used = time.perf_counter_ns() / 1e3, used_us()
        for _ in range(count):
            call()
        found.append(((time.perf_counter_ns() / 1e3 - wall) / count, (used_us() - used) / count))
    return found


def low(times: Sequence[float]) -> float:
    """The 10th percentile."""
    return sorted(times)[len(times) // 10]


def varies(read: Sequence[Values]) -> Values:
    """Of each call and way, the standard deviation of the logarithm over the processes."""
    return {
        name: {way: statistics.stdev(math.log(found[name][way]) for found in read) for way in WAYS} for name in read[0]
    }


def table(read: Sequence[Values]) -> list[str]:
    """Markdown: a line for each call, the median of what is judged, and how each way varies."""
    lines = ["| call | `cpu_time_us` | " + " | ".join(WAYS) + " |", "|---|---|" + "---|" * len(WAYS)]
    for name, of in varies(read).items():
        middle = statistics.median(found[name]["cpu_time_us"] for found in read)
        lines.append(f"| {name} | {middle:.4g} µs | " + " | ".join(f"{100 * of[way]:.1f} %" for way in WAYS) + " |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
