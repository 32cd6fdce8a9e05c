"""DualPipeV over GPUs: what its pairs hide of the exchanges, and the memory of a rank beside the closed form.

    python -m benchmarks.pipelines [--sequences N] [-o FILE]

One step of MoE layers in 16 micro-batches, by three schedules in turn: DualPipeV whose pairs take turns part by part
(`kernels.parallel.pipeline`), the same where one pass of a pair follows the other, as torch runs it, and the
zero-bubble V. On each mesh of pipeline (pp) and expert (ep) ranks that the GPUs of this host allow. Without two GPUs
two processes run a small model over gloo, which shows that everything runs, and the clock's times alone.

The closed form: rank r keeps at most 2 P + 1 micro-batches of its two stages in DualPipeV, 2 P in the zero-bubble V,
each as large as one that is measured alone.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # re-exported without saying so
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import ScheduleDualPipeV
from torch.nn import functional as F

from benchmarks.checkouts import ROOT, git
from benchmarks.rows import write_rows
from kernels.layers import BlockConfig, Transformer
from kernels.moe import MoEConfig
from kernels.parallel.experts import shard_experts
from kernels.parallel.pipeline import Stage, StageRun, build_stages, dual_pipe_v, take_turns, zero_bubble_v
from perfguard.measure.devices import kineto
from perfguard.measure.timers.profiler import covered_us

CHUNKS, LAYERS, STEPS = 16, 8, 5
MIB = 1 << 20
DUAL, AFTER, ZERO = "DualPipeV, parts in turn", "DualPipeV, one pass after the other", "zero-bubble V"


def sizes(large: bool) -> tuple[BlockConfig, int, int]:
    """A layer, tokens of a sequence, vocabulary."""
    if not large:
        return BlockConfig(dim=32, heads=4, kv_heads=2, moe=MoEConfig(dim=32, hidden=16, experts=4, top_k=2)), 8, 50
    moe = MoEConfig(dim=2048, hidden=1408, experts=8, top_k=2, shared=1, balanced=True)
    return BlockConfig(dim=2048, heads=16, kv_heads=4, moe=moe), 2048, 8192


def loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def one_after_the_other(stages: list[Stage], chunks: int, of: Callable[[Tensor, Tensor], Tensor]) -> ScheduleDualPipeV:
    return ScheduleDualPipeV(list(stages), chunks, of)


SCHEDULES: dict[str, Callable[..., Any]] = {DUAL: dual_pipe_v, AFTER: one_after_the_other, ZERO: zero_bubble_v}


class Rank:
    """One rank's part of a model on a mesh, and what a step of it takes."""

    def __init__(self, pp: int, ep: int, sequences: int, device: torch.device) -> None:
        self.device, self.sequences = device, sequences
        self.mesh = init_device_mesh(device.type, (pp, ep), mesh_dim_names=("pp", "ep"))
        config, tokens, vocab = sizes(device.type != "cpu")
        torch.manual_seed(0)
        self.whole = Transformer(
            [config] * LAYERS, vocab, positions=tokens, device=device, dtype=torch.bfloat16, loop=device.type == "cpu"
        )
        if ep > 1:
            for layer in self.whole.layers:
                shard_experts(layer.moe, self.mesh["ep"])  # type: ignore[union-attr, arg-type]
        generator = torch.Generator().manual_seed(self.mesh.get_local_rank("ep"))
        self.ids = torch.randint(vocab, (sequences * CHUNKS, tokens), generator=generator).to(device)

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.cuda.synchronize()

    def read(self, name: str) -> dict[str, Any]:
        stages = build_stages(self.whole, self.mesh["pp"].get_group())
        schedule = SCHEDULES[name](stages, CHUNKS, loss)
        first = self.mesh.get_local_rank("pp") == 0
        most = 0

        def counted(*_: Any) -> None:
            nonlocal most
            most = max(most, sum(len(stage.runs) for stage in stages))

        firsts = [next(iter(stage.module.layers.values())) for stage in stages]
        hooks = [layer.attention.register_forward_pre_hook(counted) for layer in firsts]  # type: ignore[union-attr]

        def step() -> None:
            schedule.step(*([self.ids] if first else []), target=self.ids)

        for _ in range(2):  # compiles, connects, makes gradients
            step()
        self.synchronize()
        for hook in hooks:
            hook.remove()
        turns = sum(stage.turns for stage in stages)
        found = {"turns": turns // 2, "live": most, **self._memory(stages, step), **self._times(step)}
        return found | self._exchanges(step)

    def _times(self, step: Callable[[], None]) -> dict[str, list[float]]:
        """Milliseconds of each step by this rank's clock, from a meeting to the end of its device's work, and until its
        host is done, which then waits."""
        found: dict[str, list[float]] = {"ms": [], "host_ms": []}
        for _ in range(STEPS):
            self.synchronize()
            dist.barrier()
            self.synchronize()
            began = time.perf_counter()
            step()
            found["host_ms"].append(1e3 * (time.perf_counter() - began))
            self.synchronize()
            found["ms"].append(1e3 * (time.perf_counter() - began))
        return found

    def _memory(self, stages: list[Stage], step: Callable[[], None]) -> dict[str, Any]:
        """MiB above weights and gradients: the peak of a step, and what one micro-batch keeps of each stage."""
        if self.device.type == "cpu":
            return {}
        self.synchronize()
        gc.collect()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        self.synchronize()
        peak = torch.cuda.max_memory_allocated() - held
        kept = []
        for stage in stages:
            config, tokens, _ = sizes(True)
            first = stage.module.embedding is not None
            shape = (self.sequences, tokens) if first else (self.sequences, tokens, config.dim)
            x = torch.zeros(shape, dtype=torch.int64 if first else torch.bfloat16, device=self.device)
            run = StageRun(stage.module)
            before = torch.cuda.memory_allocated()
            take_turns(run.forward(x), None)
            self.synchronize()
            kept.append((torch.cuda.memory_allocated() - before) / MIB)
            del run
        return {"held_mib": held / MIB, "peak_mib": peak / MIB, "kept_mib": kept}

    def _exchanges(self, step: Callable[[], None]) -> dict[str, float]:
        """Of one profiled step on this rank's device: how long exchanges ran, and how long they ran alone."""
        if self.device.type == "cpu":
            return {}

        def finished() -> None:
            step()
            self.synchronize()

        dist.barrier()
        exchanges: list[tuple[float, float]] = []
        others: list[tuple[float, float]] = []
        for event in kineto.raw_events(finished, "cuda"):
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation():
                is_exchange = re.match(r"nccl\w*Kernel_", event.name()) is not None
                (exchanges if is_exchange else others).append((event.start_ns() / 1e3, event.end_ns() / 1e3))
        computing_us = covered_us(others)
        return {
            "exchanging_ms": covered_us(exchanges) / 1e3,
            # exchanging - (exchanging and computing) = (exchanging or computing) - computing
            "exposed_ms": (covered_us([*exchanges, *others]) - computing_us) / 1e3,
            "computing_ms": computing_us / 1e3,
        }


def on_rank(rank: int, ranks: int, sequences: int, store: str, out: Path, origin: dict[str, Any]) -> None:
    """Writes `origin` with the rows so far to `out` after each."""
    gpus = torch.cuda.device_count() > 1
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if gpus else "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
        device_id=device if gpus else None,
    )  # fmt: skip
    found = []
    for pp, ep in meshes(ranks):
        on_mesh = Rank(pp, ep, sequences, device)
        for name in SCHEDULES:
            everyone: list[Any] = [None] * ranks
            dist.all_gather_object(everyone, on_mesh.read(name))
            found.append({"pp": pp, "ep": ep, "schedule": name, "ranks": everyone})
            if rank == 0:
                print(f"pp {pp}, ep {ep}, {name}: {shown(found[-1])}", flush=True)
                write_rows(out, origin | {"rows": found})
        del on_mesh
    dist.destroy_process_group()


def meshes(ranks: int) -> list[tuple[int, int]]:
    """(pp, ep): a pipeline of all ranks, and those whose experts lie on two."""
    return [(ranks, 1), (ranks // 2, 2)]


def shown(row: dict[str, Any]) -> str:
    step = statistics.median(max(turn) for turn in zip(*(each["ms"] for each in row["ranks"]), strict=True))
    rest = {name: [round(each[name], 1) for each in row["ranks"] if name in each] for name in (
        "turns", "live", "peak_mib", "exchanging_ms", "exposed_ms", "computing_ms")}  # fmt: skip
    return f"{step:.1f} ms; {rest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=ROOT / ".perfguard" / "pipelines.json")
    parser.add_argument("--sequences", type=int, default=2, help="of 2,048 tokens in a micro-batch (default: 2)")
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    ranks = gpus if gpus > 1 else 2
    origin = {
        "device": torch.cuda.get_device_name() if gpus > 1 else "CPU",
        "gpus": gpus,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": str(date.today()),
        "commit": git(ROOT, "rev-parse", "HEAD") if (ROOT / ".git").exists() else "",
        "command": f"python -m benchmarks.pipelines --sequences {options.sequences}",
    }
    with tempfile.TemporaryDirectory(prefix="pipelines-") as folder:
        arguments = (ranks, options.sequences, str(Path(folder, "store")), options.out.resolve(), origin)
        torch.multiprocessing.spawn(on_rank, arguments, nprocs=ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
