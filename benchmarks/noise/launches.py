"""What makes a launch dearer: the time of 200 tiny kernels, in a captured graph and behind a sleep, after each step.

    python -m benchmarks.noise.launches

Each line of steps runs in a process of its own, forked before CUDA starts. So the second stream was found out
(docs/measuring.md, "One stream"): captured on a stream beside the default one, 0.92 µs a launch became 1.10 µs from the
second time on. In the lines "one stream" and "one stream, profiled first" the columns are to stay as they begin.
"""

from __future__ import annotations

import os
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

KERNELS = 200
SAMPLES = 9
SLEEP_CYCLES = 6_000_000  # as long as the host takes to enqueue the kernels


class Bench:
    """x (256,) float32 and graphs of kernels on it; `one`: all work goes to the stream that captures."""

    def __init__(self, *, one: bool) -> None:
        self.stream = torch.cuda.Stream()
        if one:
            torch.cuda.synchronize()
            torch.cuda.set_stream(self.stream)
        self.x = torch.zeros(256, device="cuda")
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def launch(self) -> None:
        for _ in range(KERNELS):
            self.x.add_(1)

    def capture(self) -> None:
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            self.x.add_(1)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.launch()
        self.graphs.append(graph)

    def profile(self) -> None:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True):
            self.x.add_(1)
            torch.cuda.synchronize()

    def products(self) -> None:
        left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        for _ in range(50):
            left @ left

    def products_aside(self) -> None:
        with torch.cuda.stream(self.stream):
            self.products()

    def another_stream(self) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            self.x.add_(1)

    def default_stream(self) -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            self.x.add_(1)

    def to_host(self) -> None:
        self.x.sum().item()
        self.x.cpu()

    def us(self, call: Callable[[], object]) -> float:
        """Of one launch."""
        times = []
        for _ in range(SAMPLES):
            torch.cuda._sleep(SLEEP_CYCLES)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(1e3 * start.elapsed_time(end) / KERNELS)
        return statistics.median(times)


STEPS: dict[str, Callable[[Bench], None]] = {
    "capture": Bench.capture, "profile": Bench.profile, "products": Bench.products, "aside": Bench.products_aside,
    "another": Bench.another_stream, "default": Bench.default_stream, "to host": Bench.to_host,
}  # fmt: skip

LINES: Sequence[tuple[str, bool, str]] = (
    ("two streams", False, "capture,capture,capture,products,capture"),
    ("two streams, products first", False, "products,aside,capture,capture"),
    ("one stream", True, "capture,capture,products,to host,capture,aside,capture,capture"),
    ("one stream, profiled first", True, "profile,capture,capture,to host,profile,capture,products,capture"),
    ("one stream, and the default one now and then", True, "capture,capture,default,capture,default,default,capture"),
    ("one stream, and others now and then", True, "capture,capture,another,capture,another,another,capture"),
)


def follow(name: str, one: bool, steps: Sequence[str]) -> None:
    """Take the steps, and print what a launch costs after each."""
    bench = Bench(one=one)
    print(f"{name}\n  {'start':10} queued {bench.us(bench.launch):.3f}", flush=True)
    for step in steps:
        STEPS[step](bench)
        torch.cuda.synchronize()
        graph = f"{bench.us(bench.graphs[0].replay):.3f}" if bench.graphs else "-"
        print(f"  {step:10} queued {bench.us(bench.launch):.3f} graph {graph}", flush=True)


def main() -> None:
    """All lines, one after the other."""
    warnings.simplefilter("ignore")
    for name, one, steps in LINES:
        process = os.fork()
        if process == 0:
            try:
                follow(name, one, steps.split(","))
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
