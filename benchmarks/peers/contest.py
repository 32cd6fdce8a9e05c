"""One job, several ways to do it, each timed in turn: A B C A B C … so that no drift of clocks decides between them.

A call on a GPU stands behind a device-side sleep as long as launching it takes, so that the events around it see the
device alone, and behind a write of 256 MiB, so that nothing it reads is in the cache. Without a GPU the wall clock is
read, which shows that everything runs and nothing else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], Sequence[Tensor]]
FLUSH_BYTES = 256 << 20
CYCLES_A_SECOND = 2e9  # of the device-side sleep; too many only waste time
WARM_CALLS = 3
LEAST_ROUNDS, MOST_ROUNDS = 5, 30
COPY = "copy"


@dataclass(frozen=True)
class Contest:
    """One job.

    Attributes:
        rivals: by name, the one that the others are compared with first; each returns its results.
        tolerance: how far results may lie from the first one's, as a share of their norm; None: not compared.
        flop, bytes: of the job; None: not counted.
        waits: whether a call is timed by the clock until the device is done, without a sleep on the device before it:
            what a training loop waits for, the host included.
    """

    job: str
    shape: str
    rivals: Mapping[str, Call]
    tolerance: float | None = 0.02
    flop: int | None = None
    bytes: int | None = None
    waits: bool = False


@dataclass(frozen=True)
class Result:
    """One rival's. `times`: its time over the first one's; host: until the call returns; peak: above what was held."""

    job: str
    shape: str
    rival: str
    device_us: float
    spread_percent: float  # half the distance between the quartiles, of the median
    times: float
    host_us: float
    peak_mib: float | None
    tflops: float | None
    copy_percent: float | None


def hold(contest: Contest, device: torch.device, copy_tbps: float | None, seconds: float) -> list[Result]:
    """Warm up, compare results, then time the rivals in turns for about `seconds`.

    Raises ValueError where a rival's results are not those of the first: a wrong one is not timed.
    """
    peaks = {name: _peak_mib(call, device) for name, call in contest.rivals.items()}
    _require_agreement(contest)
    for call in contest.rivals.values():
        for _ in range(WARM_CALLS - 1):
            call()
    times = _timed(contest.rivals, device, seconds, waits=contest.waits)
    first_us = statistics.median(us for us, _ in next(iter(times.values())))
    results = []
    for name, pairs in times.items():
        device_us = [us for us, _ in pairs]
        middle = statistics.median(device_us)
        low, _, high = statistics.quantiles(device_us, n=4)
        results.append(
            Result(
                contest.job,
                contest.shape,
                name,
                device_us=middle,
                spread_percent=50 * (high - low) / middle,
                times=middle / first_us,
                host_us=statistics.median(us for _, us in pairs),
                peak_mib=peaks[name],
                tflops=None if contest.flop is None else contest.flop / middle / 1e6,
                copy_percent=_percent(contest.bytes, middle, copy_tbps),
            )
        )
    return results


def copy_tbps(device: torch.device, gib: float = 1.0) -> float:
    """What a copy from device to device moves, read and written."""
    source = torch.empty(int(gib * (1 << 30)), dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    times = _timed({COPY: lambda: (target.copy_(source),)}, device, 0.2)
    return 2 * source.numel() / statistics.median(us for us, _ in times[COPY]) / 1e6


def _percent(moved: int | None, microseconds: float, tbps: float | None) -> float | None:
    return None if moved is None or tbps is None else 100 * moved / microseconds / 1e6 / tbps


def _require_agreement(contest: Contest) -> None:
    if contest.tolerance is None:
        return
    (first, truth), *others = ((name, call()) for name, call in contest.rivals.items())
    for name, got in others:
        for index, (one, other) in enumerate(zip(got, truth, strict=True)):
            off = ((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-30)).item()
            if not off <= contest.tolerance:
                raise ValueError(
                    f"{contest.job} {contest.shape}: result {index} of {name} is off from that of {first} by {off:.2g} "
                    f"of its norm, {contest.tolerance} is allowed; find out which is wrong before timing either"
                )


def _timed(
    rivals: Mapping[str, Call], device: torch.device, seconds: float, *, waits: bool = False
) -> dict[str, list[tuple[float, float]]]:
    """(device µs, host µs) of each call; if it `waits`, µs until the device is done in place of the device's."""
    one = _on_cpu if device.type != "cuda" else _until_done if waits else _on_gpu
    flush = torch.empty(FLUSH_BYTES if device.type == "cuda" else 0, dtype=torch.uint8, device=device)
    sleeps = dict.fromkeys(rivals, 0.001)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
    end = time.perf_counter() + seconds
    for turn in range(MOST_ROUNDS + 1):
        for name, call in rivals.items():
            pair = one(call, flush, sleeps[name])
            if turn == 0:  # tells how long launching takes, and counts for nothing else
                sleeps[name] = 1.5e-6 * pair[1] + 20e-6
            else:
                times[name].append(pair)
        if turn >= LEAST_ROUNDS and time.perf_counter() > end:
            break
    return times


def _on_gpu(call: Call, flush: Tensor, sleep_s: float) -> tuple[float, float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    torch.cuda._sleep(int(sleep_s * CYCLES_A_SECOND))
    start.record()
    before = time.perf_counter()
    call()
    host_us = 1e6 * (time.perf_counter() - before)
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end), host_us


def _until_done(call: Call, flush: Tensor, sleep_s: float) -> tuple[float, float]:
    del sleep_s
    flush.zero_()
    torch.cuda.synchronize()
    before = time.perf_counter()
    call()
    host_us = 1e6 * (time.perf_counter() - before)
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - before), host_us


def _on_cpu(call: Call, flush: Tensor, sleep_s: float) -> tuple[float, float]:
    del flush, sleep_s
    before = time.perf_counter()
    call()
    us = 1e6 * (time.perf_counter() - before)
    return us, us


def _peak_mib(call: Call, device: torch.device) -> float | None:
    """Of a second call: the first may compile, and tries ways that later ones do not."""
    call()
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / (1 << 20)
