"""What it costs to compile a model block by block: seconds with empty and with kept caches, and a layer more.

    python -m benchmarks.compile_layers [--json PATH] [--layers 1 4 16] [--device cuda] [--backend inductor]

Each figure comes from a fresh process: "cold" has empty caches of inductor and Triton, "warm" the caches that the cold
one left. Seconds are those of the first training step less those of the third, imports not counted. The slope is the
least-squares line through the numbers of layers: about 0 where equal layers share one graph.

Model: E8, top 2, D 256, F 256, 4 heads; one sequence of 128 tokens, bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.rows import write_rows

KINDS = ("dense", "moe")


@dataclass(frozen=True)
class Compiled:
    """One process: a model of `layers` blocks, compiled.

    Attributes:
        seconds: of the first step, less those of a later one.
        graphs: that were compiled.
        hits, misses: of inductor's cache of graphs, forward and backward.
    """

    kind: str
    layers: int
    caches: str
    seconds: float
    graphs: int
    hits: int
    misses: int


def compile_here(kind: str, layers: int, caches: str, device: str, backend: str) -> Compiled:
    """In this process."""
    from torch._dynamo.utils import counters

    from kernels.layers import BlockConfig, Transformer, apply_compile
    from kernels.moe import MoEConfig
    from perfguard.measure.compiled import traced

    moe = MoEConfig(dim=256, hidden=256, experts=8, top_k=2) if kind == "moe" else None
    config = BlockConfig(dim=256, heads=4, hidden=1024, moe=moe)
    model = Transformer([config] * layers, 512, positions=128, device=device, dtype=torch.bfloat16)
    apply_compile(model, backend=backend)
    ids = torch.randint(512, (1, 128), device=device)
    with traced() as trace:
        first = step_seconds(model, ids)
    step_seconds(model, ids)
    hits, misses = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
    seconds = max(0.0, first - step_seconds(model, ids))
    return Compiled(kind, layers, caches, round(seconds, 3), len(trace.frames), hits, misses)


def step_seconds(model: torch.nn.Module, ids: torch.Tensor) -> float:
    started = time.perf_counter()
    model(ids).float().square().mean().backward()
    if ids.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def compile_apart(kind: str, layers: int, caches: str, folder: Path, arguments: argparse.Namespace) -> Compiled:
    """In a fresh process whose caches lie in `folder`."""
    line = [sys.executable, "-m", "benchmarks.compile_layers", "--child", kind, str(layers), caches]
    line += ["--device", arguments.device, "--backend", arguments.backend]
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Compiled(**json.loads(done.stdout.splitlines()[-1]))


def slope(points: list[Compiled]) -> float:
    """Seconds that one more layer adds."""
    xs, ys = [point.layers for point in points], [point.seconds for point in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((each - x) ** 2 for each in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, layers, caches = arguments.child
        found = compile_here(kind, int(layers), caches, arguments.device, arguments.backend)
        print(json.dumps(asdict(found)))
        return
    report: dict[str, Any] = {"torch": torch.__version__, "device": arguments.device, "processes": [], "slopes": {}}
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.backend}")
    for kind in KINDS:
        found: dict[str, list[Compiled]] = {"cold": [], "warm": []}
        for layers in arguments.layers:
            with tempfile.TemporaryDirectory() as folder:
                for caches, points in found.items():
                    each = compile_apart(kind, layers, caches, Path(folder), arguments)
                    points.append(each)
                    print(
                        f"{kind:<5} {layers:>3} layers  {caches}  {each.seconds:>7.2f} s  {each.graphs} graphs  "
                        f"cache: {each.hits} hits, {each.misses} misses",
                        flush=True,
                    )
        for caches, points in found.items():
            report["processes"] += [asdict(point) for point in points]
            report["slopes"][f"{kind} {caches}"] = round(slope(points), 4)
            print(f"{kind:<5} one more layer, {caches}: {slope(points):+.2f} s")
    if arguments.json:
        write_rows(arguments.json, report)


if __name__ == "__main__":
    main()
