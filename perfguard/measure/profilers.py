"""Hardware counters of a call's kernels, read by the vendor's profiler: Nsight Compute, or rocprofv3.

A profiler starts the process that it reads, and sees only the launches inside `region`. Counters have one name and unit
for all vendors. Those that moved between two sides become readings that explain a time, and gate nothing.
"""

from __future__ import annotations

import csv
import ctypes
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec.structs import replace

from perfguard.model.limits import Limits
from perfguard.model.records import Better, Case, CaseResult, Hardware, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device
    from perfguard.model.call import Call

#: Counters that are sums, of which less is better -> the bytes that one stands for. A warp's access to local memory
#: moves a register of 4 bytes for each of its 32 lanes. A warp may wait for each instruction, so any number counts.
SUMS = {"local_accesses": 128, "dram_read": 1, "dram_written": 1, "warp_instructions": math.inf}
#: Counters in percent, of which more is better.
SHARES = ("l2_hits", "occupancy", "tensor_pipe")
COUNTERS = (*SUMS, *SHARES)
#: Beginning of the names of the reasons for which warps wait, in percent of all reasons.
STALLS = "stalls."

_MOST, _MOST_REASONS = 4, 2  # Counters of one comparison; further ones follow from these.
_NOTICEABLE, _POINTS = 1.05, 2.0  # Of equal kernels, counters differ by about 1 %, and shares by less than 2 points.
_BYTES_PER_US = 3e4  # A memory of 3 TB/s moves them in 1 % of a kernel's time: less traffic explains nothing.


class Launch(NamedTuple):
    """One launch of a kernel: its duration in the profiler, µs, and its counters."""

    kernel: str
    us: float
    counters: dict[str, float]


class Profiler(Protocol):
    """A vendor's profiler: the name of its program, and what to install for it."""

    name: str
    package: str

    def prefix(self, program: str, folder: Path) -> list[str]:
        """The words before the command of a process whose counters it writes into `folder`. `program`: its path."""

    def region(self) -> AbstractContextManager[None]:
        """In that process: the kernels that run inside are counted."""

    def launches(self, folder: Path) -> list[Launch]:
        """The launches that it counted, in their order."""


def is_counter(reading: Reading) -> bool:
    """Whether a reading is of `moved`."""
    return reading.metric in COUNTERS or reading.metric.startswith(STALLS)


def profiler_for(hardware: Hardware) -> Profiler | None:
    """The profiler for a device; None for a device without one, such as a CPU."""
    known: dict[str, Profiler] = {"nvidia": NsightCompute(), "amd": RocProfiler()}
    return known.get(hardware.slug.partition("-")[0])


def profiled_call(call: Call, case: Case, wanted: Case, device: Device) -> list[CaseResult]:
    """In the process under a profiler: make the wanted pass once, warm. Other calls of the test return nothing."""
    from perfguard._compat.torch_compiler import forget_compiled
    from perfguard.measure.replay import pass_of

    profiler = profiler_for(device.identity)
    if case.name != wanted.name or profiler is None:
        return []
    if wanted.direction == "backward":
        forget_compiled()  # Code compiled for one backward pass cannot be replayed.
    run = pass_of(call, wanted.direction)
    for _ in range(2):  # Kernels are compiled, tuned and loaded.
        run()
    device.synchronize()
    with profiler.region() if device.torch_device.type == "cuda" else nullcontext():  # Otherwise it is simulated.
        run()
        device.synchronize()
    return [CaseResult(replace(case, direction=wanted.direction))]


# -- Nsight Compute ----------------------------------------------------------------------------------------------------

_NCU_FILE, _NCU_TIME = "ncu.csv", "gpu__time_duration.sum"
_OF_NCU = {
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
    "smsp__sass_inst_executed_op_local_ld.sum": "local_accesses",
    "smsp__sass_inst_executed_op_local_st.sum": "local_accesses",
    "smsp__inst_executed.sum": "warp_instructions",
    "lts__t_sector_hit_rate.pct": "l2_hits",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
}
# Two sections hold the counters whose names differ between architectures: of reasons to wait, and of matrix products.
_SECTIONS = "--section WarpStateStats --section ComputeWorkloadAnalysis"
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(?!selected)(\w+)_per_issue_active\.ratio")
_TENSOR = re.compile(r"sm__\w*pipe_tensor\w*\.avg\.pct_of_peak_sustained_active")
_NO_PERMISSION = (
    "ERR_NVGPUCTRPERM: the driver lets only administrators read counters. The administrator sets `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d and loads the driver again, or starts the container "
    "with --cap-add=SYS_ADMIN: https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)


class NsightCompute:
    """NVIDIA's `ncu`, which repeats each kernel until all counters are read."""

    name, package = "ncu", "Nsight Compute, of the CUDA toolkit, and put ncu on PATH"

    def prefix(self, program: str, folder: Path) -> list[str]:
        # Clocks stay as they are, since setting them needs rights that a job seldom has.
        options = f"--clock-control none --profile-from-start off --print-units base --csv --page raw {_SECTIONS}"
        metrics = ",".join([_NCU_TIME, *_OF_NCU])
        return [program, *options.split(), "--metrics", metrics, "--log-file", str(folder / _NCU_FILE)]

    def region(self) -> AbstractContextManager[None]:
        import torch

        return torch.cuda.profiler.profile()

    def launches(self, folder: Path) -> list[Launch]:
        _, header, table = _text(folder / _NCU_FILE).partition('"ID",')  # Messages come first, then a row of units.
        return [_of_ncu(row) for row in csv.DictReader((header + table).splitlines()) if row["Kernel Name"]]


def _of_ncu(row: Mapping[str, str]) -> Launch:
    read = {name: value for name in row if not math.isnan(value := _number(row[name]))}
    waits = {STALLS + found[1]: read[name] for name in read if (found := _STALL.fullmatch(name))}
    tensor = [value for name, value in read.items() if _TENSOR.fullmatch(name)]
    counters = {name: 100 * value / (sum(waits.values()) or 1.0) for name, value in waits.items()}
    counters |= {"tensor_pipe": max(tensor)} if tensor else {}
    for name in _OF_NCU.keys() & read.keys():
        counters[_OF_NCU[name]] = counters.get(_OF_NCU[name], 0.0) + read[name]
    return Launch(row["Kernel Name"], read.get(_NCU_TIME, 0.0) / 1e3, counters)


def refusal(folder: Path) -> str:
    """Why `ncu` counted nothing, in one line; empty if it does not say, or if the process itself can say why."""
    errors = [line.partition("==ERROR== ")[2] for line in _text(folder / _NCU_FILE).splitlines() if "==ERROR==" in line]
    errors = [each for each in errors if not each.startswith("The application returned an error")]
    return _NO_PERMISSION if "ERR_NVGPUCTRPERM" in "".join(errors) else next(iter(errors), "")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:  # A name, or `n/a`.
        return math.nan


# -- rocprofv3 ---------------------------------------------------------------------------------------------------------

# The process runs once for each line, since the counters of the L2 do not fit into one run.
_RUNS = ("FETCH_SIZE", "WRITE_SIZE", "L2CacheHit", "OccupancyPercent MfmaUtil", "MemUnitStalled")
_OF_ROCM = {
    "FETCH_SIZE": "dram_read",
    "WRITE_SIZE": "dram_written",
    "L2CacheHit": "l2_hits",
    "OccupancyPercent": "occupancy",
    "MfmaUtil": "tensor_pipe",
    "MemUnitStalled": f"{STALLS}memory_unit",
}


class RocProfiler:
    """AMD's `rocprofv3`, whose CSV has a row for each launch and counter, by ROCm's documentation."""

    name, package = "rocprofv3", "rocprofiler-sdk, of ROCm, and put rocprofv3 on PATH"

    def prefix(self, program: str, folder: Path) -> list[str]:
        counters = folder / "counters.txt"
        counters.write_text("".join(f"pmc: {line}\n" for line in _RUNS), encoding="utf-8")
        output = ["--output-format", "csv", "--output-directory", str(folder)]
        return [program, "--selected-regions", "--marker-trace", "--input", str(counters), *output, "--"]

    @contextmanager
    def region(self) -> Iterator[None]:
        roctx = ctypes.CDLL("librocprofiler-sdk-roctx.so")  # A part of the same package.
        roctx.roctxProfilerResume(0)
        yield
        roctx.roctxProfilerPause(0)

    def launches(self, folder: Path) -> list[Launch]:
        found: dict[tuple[str, int], Launch] = {}
        for path in sorted(folder.rglob("*counter_collection.csv")):
            numbers: dict[str, list[str]] = {}  # Kernel -> its dispatches in this run.
            for row in csv.DictReader(_text(path).splitlines()):
                kernel, dispatch = row["Kernel_Name"], row["Dispatch_Id"]
                us = (_number(row["End_Timestamp"]) - _number(row["Start_Timestamp"])) / 1e3
                numbers.setdefault(kernel, []).extend([dispatch] * (dispatch not in numbers.get(kernel, ())))
                launch = found.setdefault((kernel, numbers[kernel].index(dispatch)), Launch(kernel, us, {}))
                if name := _OF_ROCM.get(row["Counter_Name"]):  # Sums are in KiB.
                    launch.counters[name] = _number(row["Counter_Value"]) * (1024 if name in SUMS else 1)
        return [*found.values()]


# -- two sides ---------------------------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """What moved between two sides of a call: readings of the same metrics, what moved most first. `kernel`: the one
    whose time `us` in the profiler, µs, moved most; "all kernels" if it runs on one side only."""

    kernel: str
    us: tuple[float, float]
    base: list[Reading]
    work: list[Reading]


def moved(base: Sequence[Launch], work: Sequence[Launch]) -> Moved:
    """The counters that moved from one side to the other, each side with at least one launch.

    The greatest ratio comes first, and before it a counter that was 0. Counters that moved with the time come before
    those that moved against it. Behind them are the largest reasons for which warps wait.
    """
    kernel, sides = _moved_kernel(base, work)
    before, after = (_total(side) for side in sides)
    us = before["us"], after["us"]
    ranked = []
    for name in COUNTERS:
        then, now = before.get(name, math.nan), after.get(name, math.nan)
        least, most = sorted((then, now))
        # A share counts in points, a sum by what it can cost.
        cost, floor = (SUMS[name], _BYTES_PER_US * max(us)) if name in SUMS else (1, _POINTS)
        if most > _NOTICEABLE * least and cost * (most - least) >= floor:
            against = ((now > then) is (name in SUMS)) is (us[1] < us[0])
            ranked.append((against, -most / least if least > 0 else -math.inf, name))
    names = [name for *_, name in sorted(ranked)[:_MOST]]
    waits = sorted(after.keys() & before.keys() - {"us", *COUNTERS}, key=lambda name: -after[name])
    names += [name for name in waits[:_MOST_REASONS] if abs(after[name] - before[name]) >= _POINTS]
    readings = [[_reading(name, side[name], rank) for rank, name in enumerate(names)] for side in (before, after)]
    return Moved(kernel, us, *readings)


def _moved_kernel(base: Sequence[Launch], work: Sequence[Launch]) -> tuple[str, list[Sequence[Launch]]]:
    growth_us: dict[str, float] = {}
    for sign, side in ((-1, base), (1, work)):
        for launch in side:
            growth_us[launch.kernel] = growth_us.get(launch.kernel, 0.0) + sign * launch.us
    kernel = (max if sum(growth_us.values()) >= 0 else min)(growth_us, key=lambda name: growth_us[name])
    of_kernel = [[launch for launch in side if launch.kernel == kernel] for side in (base, work)]
    return (kernel, [*of_kernel]) if all(of_kernel) else ("all kernels", [base, work])


def _total(launches: Sequence[Launch]) -> dict[str, float]:
    """The sum of each counter over the launches; of shares the mean, by the time of each launch."""
    total = {"us": sum(launch.us for launch in launches)}
    for launch in launches:
        for name, value in launch.counters.items():
            total[name] = total.get(name, 0.0) + (value if name in SUMS else value * launch.us / (total["us"] or 1.0))
    return total


def _reading(name: str, value: float, rank: int) -> Reading:
    better = Better.LOWER if name in SUMS else Better.HIGHER if name in SHARES else Better.SAME
    unit = Unit.TEXT if name not in SUMS else Unit.BYTES if SUMS[name] == 1 else Unit.COUNT
    shown = round(value) if name in SUMS else f"{value:.0f} %"
    return Limits(better, gated=False).reading(name, unit, shown, rank=rank)
