"""Microseconds of host that a call of each public operator takes, beside a bare Triton launch behind one operator.

    python -m benchmarks.host [NAME …] [--batches 40] [--json PATH] [--beside COMMIT]

A training step of many small kernels is as fast as its host. With a GPU the launches are real, and nothing is waited
for within a batch of calls. Without one they are those of an H100 up to the driver: kernels are compiled for it, its
plans are taken, and a stub stands where the driver would be called; tensors lie in host memory and nothing is written.

What runs torch's own operators beside launches, `linear_cross_entropy`, the MoE layer and attention, is small in all
widths, because the stub computes these on the CPU; they are not among `launches`.

"recorded" is the forward of a training step, with what autograd keeps; without the word nothing is to be
differentiated. Views of weights are made before.

`launches` counts launches of Triton kernels in a call. `median` and `least` are microseconds a call, over batches of
CALLS calls; `x bare` is `least` beside that of the bare launch with as many arguments as a quantiser has, and `each`
that by launches. Without a GPU seconds are the processor's, so that what else runs there counts little; `least` is the
figure to read. `--beside` reads the kernels of a commit, or of another checkout's folder, by turns with these, in fresh
processes of TURNS turns each, and keeps the least of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.rows import write_rows
from kernels import block_scaled, fp8, grouped, operators
from kernels.fp8 import scaled
from kernels.layers.attention import Attention
from kernels.layers.config import BlockConfig
from kernels.moe import MoE, MoEConfig, collect, plan, spread
from kernels.moe import rows as moe_rows
from kernels.moe.weighted_gate import weighted_gate_backward
from kernels.parallel.vocab_cross_entropy import vocab_parallel_cross_entropy

CALLS = 20  # of a batch: fewer than a stream takes without making the host wait
TURNS = 3
TARGET = "sm_90"  # of the stub
Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """What a call costs the host."""

    name: str
    launches: int
    median_us: float
    least_us: float


# ---- the bare launch -------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("perfguard_benchmarks", "DEF")
_LIBRARY.define("bare(Tensor x) -> Tensor")


@triton.jit
def _bare(  # type: ignore[no-untyped-def]  # noqa: PLR0913  # as many as a kernel takes
    a_ptr, b_ptr, c_ptr, rows, inner, width, stride_0, stride_1, stride_2,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    pass


def _launch_bare(x: Tensor) -> Tensor:
    """As many arguments as `quantize_rows` has, and one allocation."""
    out = x.new_empty(x.shape)
    _bare[(1,)](x, out, out, 128, 128, 5120, 5120, 5120, 1, A=1, B=2, C=3, D=4, E=5, F=6, num_warps=4)
    return out


_LIBRARY.impl("bare", _launch_bare, "CompositeExplicitAutograd")


# ---- what is measured ------------------------------------------------------------------------------------------------


def calls(device: torch.device) -> dict[str, Call]:
    """Each public operator on widths of real models and few rows: the host's work does not depend on their number."""

    def bf16(*shape: int, grad: bool = False) -> Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16, device=device, requires_grad=grad)

    experts, tokens, inner, outer = 8, 128, 2048, 768  # a stub's memory is mapped anew above 32 MiB, 10 us a tensor
    a, grad_out, weight = bf16(tokens, inner), bf16(tokens, outer), bf16(experts, outer, inner).mT
    ends = torch.arange(1, experts + 1, dtype=torch.int32, device=device) * (tokens // experts)
    expert = torch.arange(tokens, device=device) % experts
    gate = bf16(tokens, outer), bf16(tokens, outer)
    trained_a, trained_weight = bf16(tokens, inner, grad=True), bf16(experts, outer, inner, grad=True)
    view = trained_weight.mT
    g, u, gu = bf16(tokens, outer, grad=True), bf16(tokens, outer, grad=True), bf16(tokens, 2 * outer, grad=True)
    logits = bf16(tokens, 32000, grad=True)
    target = torch.zeros(tokens, dtype=torch.int64, device=device)
    bias, norm = bf16(experts, inner, grad=True), bf16(inner, grad=True)
    heads, table = bf16(1, tokens, 16, 128, grad=True), torch.zeros(tokens, 64, 2, device=device)
    few, head = bf16(16, 32, grad=True), torch.zeros(64, 32, device=device, requires_grad=True)
    few_fp32 = torch.zeros(16, 32, device=device, requires_grad=True)  # a CPU has no product of bf16 into fp32
    unrouted = bf16(tokens // 4, inner, grad=True)
    ids = torch.arange(tokens, device=device).view(tokens // 4, 4) % experts
    routed, shares = plan(ids, experts), torch.zeros(tokens // 4, 4, device=device, requires_grad=True)
    layer = MoE(MoEConfig(dim=32, hidden=64, experts=experts, top_k=2), device=device, dtype=torch.bfloat16)
    attention = Attention(BlockConfig(dim=32, heads=2, hidden=64), device=device, dtype=torch.bfloat16)
    sequence, turns = bf16(1, 16, 32, grad=True), torch.zeros(16, 8, 2, device=device)
    inverse = torch.arange(tokens, device=device).view(tokens // 4, 4)
    weights = torch.zeros(tokens // 4, 4, device=device)
    forward: dict[str, Call] = {
        "bare launch": lambda: torch.ops.perfguard_benchmarks.bare(a),
        "quantize_rowwise": lambda: fp8.quantize_rowwise(a),
        "quantize_colwise_3d": lambda: fp8.quantize_colwise_3d(weight),
        "quantize_colwise_per_group": lambda: fp8.quantize_colwise_per_group(a, ends),
        "quantize_colwise_per_group padded": lambda: fp8.quantize_colwise_per_group(a, ends, alignment=16),
        "quantize_rowwise_per_group": lambda: fp8.quantize_rowwise_per_group(a.t(), ends),
        "quantize_colwise_per_group_dual": lambda: fp8.quantize_colwise_per_group_dual(grad_out, a, ends),
        "quantize_transpose_3d_atomic": lambda: fp8.quantize_transpose_3d_atomic(weight),
        "quantize_rowwise_colwise_per_group": lambda: fp8.quantize_rowwise_colwise_per_group(a, ends),
        "quantize_colwise_transpose_3d": lambda: fp8.quantize_colwise_transpose_3d(weight),
        "quantize_1x128": lambda: fp8.quantize_1x128(a),
        "quantize_128x128": lambda: fp8.quantize_128x128(weight),
        "quantize_mx": lambda: fp8.quantize_mx(a),
        "moe spread_rows": lambda: moe_rows.spread_rows(a[: tokens // 4], weights, inverse),
        "moe plan": lambda: plan(inverse, experts),
        "moe sum_rows": lambda: moe_rows.sum_rows(a, weights, inverse),
        "moe weighted_gate_backward": lambda: weighted_gate_backward(grad_out, *gate, weights, inverse),
    }
    trained: dict[str, tuple[Call, list[Tensor]]] = {
        "fp8.grouped_mm": (lambda: fp8.grouped_mm(trained_a, view, ends), [trained_a, trained_weight]),
        "block_scaled.grouped_mm": (
            lambda: block_scaled.grouped_mm(trained_a, view, ends),
            [trained_a, trained_weight],
        ),
        "permute_and_pad": (lambda: block_scaled.permute_and_pad(trained_a, ends, 16).rows, [trained_a]),
        "grouped_mm": (lambda: grouped.grouped_mm(trained_a, view, ends, impl="triton"), [trained_a, trained_weight]),
        "silu_mul": (lambda: operators.silu_mul(g, u), [g, u]),
        "clamped_swiglu": (lambda: operators.clamped_swiglu(gu), [gu]),
        "indexed_bias_add": (lambda: operators.indexed_bias_add(trained_a, bias, expert, ends), [trained_a, bias]),
        "padded_index_gather": (lambda: operators.padded_index_gather(trained_a, expert), [trained_a]),
        "scatter_for_grouped_gemm": (
            lambda: operators.scatter_for_grouped_gemm(trained_a, expert, experts, host_counts=False)[0],
            [trained_a],
        ),
        "rms_norm": (lambda: operators.rms_norm(trained_a, norm), [trained_a, norm]),
        "rms_norm_quantize": (lambda: operators.rms_norm_quantize(trained_a, norm).out, [trained_a, norm]),
        "rope": (lambda: operators.rope(heads, table), [heads]),
        "cross_entropy": (lambda: operators.cross_entropy(logits, target), [logits]),
        "vocab_parallel_cross_entropy": (lambda: vocab_parallel_cross_entropy(logits, target), [logits]),
        "linear_cross_entropy": (
            lambda: operators.linear_cross_entropy(few_fp32, head, target[:16]),
            [few_fp32, head],
        ),
        "moe spread": (lambda: spread(unrouted, shares, routed), [unrouted, shares]),
        "moe collect": (lambda: collect(trained_a, shares, routed), [trained_a, shares]),
        "moe layer": (lambda: layer(few), [few, *layer.parameters()]),
        "attention": (lambda: attention(sequence, turns), [sequence, *attention.parameters()]),
    }
    for name, (call, inputs) in trained.items():
        forward[name] = torch.no_grad()(call)
        forward[f"{name}, recorded"] = call
        forward[f"{name} + backward"] = lambda call=call, inputs=inputs: _backward(call(), inputs)  # type: ignore[misc]
    return forward


def _backward(out: Tensor, inputs: list[Tensor]) -> object:
    return torch.autograd.grad(out, inputs, out.detach())


# ---- how -------------------------------------------------------------------------------------------------------------


@contextmanager
def stubbed() -> Iterator[None]:
    """Within, tensors claim to be on a TARGET, whose driver takes launches and does nothing."""
    from perfguard._compat.triton_internals import driven_by
    from perfguard.measure.binaries.absent_gpu import simulated
    from perfguard.measure.binaries.launch_recorder import Driver
    from perfguard.measure.binaries.targets import TARGETS

    for option, most in ((-1, 1 << 30), (-3, 32 << 20)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        ctypes.CDLL(None).mallopt(option, most)  # freed memory is kept, as a GPU's allocator keeps it
    driver: Any = Driver(TARGETS[TARGET])
    driver.utils.load_binary = lambda *_: (object(), 0, 0, 0, 1024)
    driver.utils.unload_module = lambda *_: None
    driver.launcher_cls = lambda *of: launcher_of(*of)
    driver.get_current_device = lambda: 0
    with simulated(TARGETS[TARGET]), driven_by(driver), _fresh_on_the_host():
        scaled._PROBES[torch.device("cuda", 0), torch.float8_e4m3fn] = scaled.Probe("triton", (), "triton")
        yield


def launcher_of(source: Any, metadata: Any) -> Call:
    """What Triton asks its driver for, once a binary."""
    return _launch_nothing


def _launch_nothing(
    x: int, y: int, z: int, stream: int, function: int, packed: Any, metadata: Any, *hooks: Any
) -> None:
    enter = hooks[0]
    if enter is not None:
        enter(metadata)


@contextmanager
def _fresh_on_the_host() -> Iterator[None]:
    names = ("empty", "zeros", "full", "arange", "ones")
    before = {name: getattr(torch, name) for name in names}

    def without_device(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args, device=None, **options: function(*args, **options)

    try:
        for name, function in before.items():
            setattr(torch, name, without_device(function))
        yield
    finally:
        for name, function in before.items():
            setattr(torch, name, function)


def measure(name: str, call: Call, batches: int, wait: Call) -> Row:
    """The first calls compile; then so many batches."""
    clock = time.perf_counter if torch.cuda.is_available() else time.thread_time
    launched = 0

    def count(_: Any) -> None:
        nonlocal launched
        launched += 1

    call()
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(count)
    call()
    hooks.remove(count)
    times = []
    for _ in range(batches):
        wait()
        started = clock()
        for _ in range(CALLS):
            call()
        times.append((clock() - started) / CALLS * 1e6)
    return Row(name, launched, round(statistics.median(times), 1), round(min(times), 1))


def by_turns(options: argparse.Namespace) -> None:
    """Both checkouts' figures, in a table and in the form of docs/h200-launches.json."""
    from benchmarks.checkouts import ROOT, copied, git, import_path

    least: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="host-") as name:
        other, kept = Path(name, "other"), Path(name, "rows.json")
        if Path(options.beside).is_dir():
            other = Path(options.beside).resolve()
        else:
            git(copied(other), "checkout", "--quiet", "--detach", options.beside)
        places = {"before_us": other, "us": ROOT}
        for turn in range(TURNS):
            for which, place in list(places.items())[:: 1 if turn % 2 else -1]:
                line = [sys.executable, __file__, *options.names, f"--batches={options.batches}", f"--json={kept}"]
                environment = {**os.environ, "PYTHONPATH": import_path(place)}
                subprocess.run(line, env=environment, stdout=subprocess.DEVNULL, check=True)
                told = json.loads(kept.read_text())
                for row in told.pop("rows"):
                    found = least.setdefault(row["name"], {"launches": row["launches"]})
                    found[which] = min(row["least_us"], found.get(which, row["least_us"]))
    rows = [{"name": name, **found} for name, found in least.items()]
    print(f"{'operator':38}{options.beside[:12]:>13}{'here, least us':>16}")
    for each in rows:
        print(f"{each['name']:38}{each.get('before_us', '-'):>13}{each['us']:>16}")
    if options.json:
        commit = git(ROOT, "rev-parse", "HEAD") if (ROOT / ".git").exists() else ""
        command = " ".join(["python -m benchmarks.host", *sys.argv[1:]])
        origin = {"date": str(date.today()), "commit": commit, "command": command, "before": options.beside[:7]}
        write_rows(options.json, told | origin | {"rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.host", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help="parts of names; all without")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--beside", metavar="COMMIT", help="whose kernels are read by turns with these")
    options = parser.parse_args()
    if options.beside:
        by_turns(options)
        return
    has_gpu = torch.cuda.is_available()
    rows: list[Row] = []
    with nullcontext() if has_gpu else stubbed():
        found = calls(torch.device("cuda", 0))
        device = torch.cuda.get_device_name() if has_gpu else f"{TARGET}, launches stubbed"
        print(f"{device}, torch {torch.__version__}, triton {triton.__version__}")
        print(f"{'operator':38}{'launches':>9}{'median us':>11}{'least us':>10}{'x bare':>8}{'each':>7}")
        for name, call in found.items():
            if rows and options.names and not any(part in name for part in options.names):
                continue
            try:
                rows.append(measure(name, call, options.batches, torch.cuda.synchronize if has_gpu else lambda: None))
            except AttributeError as error:  # of kernels of a commit that had no such operator
                print(f"{name:38} not measured: {error}")
                continue
            row = rows[-1]
            ratio = row.least_us / rows[0].least_us
            each = f"{ratio / row.launches:7.1f}" if row.launches else ""
            print(f"{name:38}{row.launches:9}{row.median_us:11}{row.least_us:10}{ratio:8.1f}{each}", flush=True)
    if options.json:
        report = {"device": device, "torch": torch.__version__, "triton": triton.__version__}
        write_rows(options.json, report | {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
