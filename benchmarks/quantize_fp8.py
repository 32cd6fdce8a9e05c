"""The speed of the fp8 quantisers on this GPU, beside a plain copy of the same run.

    python -m benchmarks.quantize_fp8 [--json PATH] [--shapes A B]

Bytes are the fewest that could move: 2 read and 1 written for a bf16 element. One copy moves 1 GiB to another GiB and
counts both; the other moves as many bytes as the kernel, since a short copy is slower, too. A call is timed by events
behind a device-side sleep, so that launching is not in it, after a flush of the cache outside the window; the figure is
the median.

Shapes: A = E16 M16640 K5120 N8192, B = E64 M32768 K2048 N1408.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import kernels.fp8 as fp8
from benchmarks.rows import write_rows

FLUSH_BYTES = 256 << 20
COPY_BYTES = 1 << 30
SLEEP_CYCLES = 2_000_000  # about 1 ms: longer than it takes to launch a quantiser, on a slow host too


@dataclass(frozen=True)
class Shape:
    """E experts, M tokens, K inner and N outer width."""

    experts: int
    tokens: int
    inner: int
    outer: int


SHAPES = {"A": Shape(16, 16640, 5120, 8192), "B": Shape(64, 32768, 2048, 1408)}
KERNELS = (
    "rowwise",
    "rowwise_per_group",
    "colwise_per_group",
    "colwise_per_group_dual",
    "transpose_3d_atomic",
    "transpose_3d_reduction",
    "colwise_3d",
    "1x128",
    "128x128",
    "mx",
)


@dataclass(frozen=True)
class Row:
    """One kernel at one shape."""

    kernel: str
    shape: str
    time_us: float
    bandwidth_tbps: float
    copy_percent: float  # of the speed of 1 GiB
    same_bytes_percent: float  # of the speed of a copy that moves as many bytes


def main() -> None:
    arguments = _arguments()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    copy_tbps = _copy_tbps(flush)
    rows = []
    for shape in arguments.shapes:
        for kernel in arguments.kernels:
            call, elements = call_of(kernel, SHAPES[shape])
            time_us = _median_us(call, flush)
            bandwidth = 3 * elements / time_us / 1e6
            same_bytes = 100 * bandwidth / _copy_tbps(flush, 3 * elements // 2)
            rows.append(Row(kernel, shape, time_us, bandwidth, 100 * bandwidth / copy_tbps, same_bytes))
            del call
            torch.cuda.empty_cache()
    print(_table(rows, copy_tbps))
    if arguments.json:
        report = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "copy_tbps": copy_tbps,
            "rows": [asdict(row) for row in rows],
        }
        write_rows(Path(arguments.json), report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="also write the figures there")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES))
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    return parser.parse_args()


def call_of(kernel: str, shape: Shape) -> tuple[Callable[[], object], int]:
    """A call of the kernel on normal data in the layout it is used with, and the elements it reads."""
    function = getattr(fp8, f"quantize_{kernel}")
    experts, tokens, inner, outer = shape.experts, shape.tokens, shape.inner, shape.outer

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    group = torch.arange(1, experts + 1, dtype=torch.int32, device="cuda")
    offs = group * (tokens // experts)
    if kernel in ("rowwise", "1x128", "mx"):
        args: tuple[torch.Tensor, ...] = (normal(tokens, inner),)
    elif kernel == "rowwise_per_group":
        args = (normal(tokens, inner).t(), offs)
    elif kernel == "colwise_per_group":
        args = (normal(tokens, inner), offs)
    elif kernel == "colwise_per_group_dual":
        args = (normal(tokens, outer), normal(tokens, inner), offs)
    else:
        args = (normal(experts, outer, inner).transpose(1, 2),)
    elements = sum(arg.numel() for arg in args if arg is not offs)
    options = {} if kernel == "mx" else {"power_of_two": True}
    return lambda: function(*args, **options), elements


def _median_us(call: Callable[[], object], flush: torch.Tensor, repeats: int = 30) -> float:
    for _ in range(3):
        call()
    events = []
    for _ in range(repeats):
        flush.zero_()
        torch.cuda._sleep(SLEEP_CYCLES)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(1e3 * start.elapsed_time(end) for start, end in events)


def _copy_tbps(flush: torch.Tensor, size: int = COPY_BYTES) -> float:
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * size / _median_us(lambda: target.copy_(source), flush) / 1e6


def _table(rows: list[Row], copy_tbps: float) -> str:
    lines = [f"{torch.cuda.get_device_name()}, copy {copy_tbps:.3f} TB/s", ""]
    lines.append(f"{'kernel':<26}{'shape':<7}{'us':>9}{'TB/s':>8}{'% copy':>9}{'% same bytes':>14}")
    for row in rows:
        lines.append(
            f"{row.kernel:<26}{row.shape:<7}{row.time_us:>9.1f}{row.bandwidth_tbps:>8.2f}"
            f"{row.copy_percent:>9.1f}{row.same_bytes_percent:>14.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
