"""The kernels of this repository beside named peers, on this device, in one process.

    python -m benchmarks.peers [fp8] [bf16] [moe] [step] [cross-entropy] [operators] [torchao] [-o PATH] [--smoke]

Without a name all run. `fp8`: float8 grouped matmul against torch's in bf16. `bf16`: our grouped product, every
candidate, against torch's. `moe`: the layer against the same layer of torch operators, time and peak memory.
`step`: one training step of the layer at three sizes, by the clock, against torch's and torchao's operators.
`cross-entropy`: against liger-kernel where it can be imported, and eager and compiled torch. `operators`: against eager
and compiled torch, and a copy of the same bytes. `torchao`: its quantisers and its grouped matmul in float8, where it
can be imported. `--smoke`: tiny shapes, wherever this runs, to see that it does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.peers import cross_entropy, matmuls, moe, operators, torchao
from benchmarks.peers.contest import Contest, Result, copy_tbps, hold
from benchmarks.rows import write_rows

SUITES: dict[str, Callable[[torch.device, bool], Iterator[Contest]]] = {
    "fp8": matmuls.fp8_contests,
    "bf16": matmuls.bf16_contests,
    "moe": moe.contests,
    "step": moe.step_contests,
    "cross-entropy": cross_entropy.contests,
    "operators": operators.contests,
    "torchao": torchao.contests,
}


def main() -> None:
    arguments = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.smoke:
        raise SystemExit("peers: there is no GPU here, and a CPU takes hours for real shapes: add --smoke to try it")
    torch.manual_seed(0)
    tbps = None if arguments.smoke else copy_tbps(device)
    results: list[Result] = []
    print(_title(device, tbps), _HEADER, sep="\n")
    for suite in arguments.suites or SUITES:
        for contest in SUITES[suite](device, arguments.smoke):
            for result in hold(contest, device, tbps, 0.0 if arguments.smoke else arguments.seconds):
                results.append(result)
                print(_line(result), flush=True)
            if arguments.output:  # after each: a lent machine may be taken back
                told = [asdict(result) for result in results]
                report = {"device": _title(device, tbps), "copy_tbps": tbps, "results": told}
                write_rows(arguments.output, report)
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(SUITES))
    parser.add_argument("-o", "--output", type=Path, help="also write the figures there, as JSON")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing a contest, about")
    arguments = parser.parse_args()
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"suite: is {suite!r}; may be {', '.join(SUITES)}")
    return arguments


def _title(device: torch.device, tbps: float | None) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    versions = f"torch {torch.__version__}, triton {metadata.version('triton')}"
    return f"{name}, {versions}" + ("" if tbps is None else f", copy {tbps:.3f} TB/s")


_HEADER = (
    f"{'job':<41}{'shape':<34}{'rival':<26}{'device us':>11}{'+-%':>6}{'times':>7}{'host us':>9}{'peak MiB':>10}"
    f"{'TFLOP/s':>9}{'% copy':>8}"
)


def _line(result: Result) -> str:
    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    return (
        f"{result.job:<41}{result.shape:<34}{result.rival:<26}{result.device_us:>11.1f}{result.spread_percent:>6.1f}"
        f"{result.times:>7.3f}{result.host_us:>9.0f}{number(result.peak_mib, 0):>10}{number(result.tflops, 0):>9}"
        f"{number(result.copy_percent, 1):>8}"
    )


if __name__ == "__main__":
    main()
