"""Time the candidates of the operators on this GPU: where the tables in kernels/operators/configs.py come from.

    python -m tests.kernels.operator_sweep [words to find in operator and shape]

Prints for each candidate the device time of one call with a cold cache, the share of the copy ceiling that the fewest
bytes in that time are, and the launches; forward and backward. A wrong candidate is not timed.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from kernels import operators
from kernels.launch import MAX_CANDIDATES
from kernels.operators import reference, shapes
from perfguard import Work
from perfguard.measure.devices import Device, open_device
from perfguard.measure.replay import backward, copies, forward, touched_bytes
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Workload
from perfguard.model.call import Call
from tests.kernels.operator_work import (
    bias_work,
    cross_entropy_work,
    gate_work,
    gather_work,
    norm_work,
    rope_work,
    scatter_work,
)

BLOCKS = 5
ALIGNMENT = 128


def calls(device: str) -> Iterator[tuple[str, Callable[[], tuple[Any, ...]], Work]]:
    """Each operator at each real shape: its name, what draws its arguments, its work."""
    for gate in shapes.SILU_MUL:
        yield f"silu_mul {gate}", partial(gate.pair, device), gate_work(gate)
    for gate in shapes.CLAMPED_SWIGLU:
        yield f"clamped_swiglu {gate}", partial(gate.interleaved, device), gate_work(gate)
    for norm in shapes.RMS_NORM:
        yield f"rms_norm {norm}", partial(norm.inputs, device), norm_work(norm)
    for turn in shapes.ROPE:
        yield f"rope {turn}", partial(turn.inputs, device), rope_work(turn)
    for logits in shapes.CROSS_ENTROPY:
        yield f"cross_entropy {logits}", partial(logits.inputs, device), cross_entropy_work(logits)
    for moved in shapes.MOVED:
        yield f"padded_index_gather {moved}", partial(moved.gathered, device), gather_work(moved)
    for moved in shapes.MOVED:

        def scattered(moved: shapes.MovedShape = moved) -> tuple[Any, ...]:
            return (*moved.scattered(device), ALIGNMENT, 1, False)

        yield f"scatter_for_grouped_gemm {moved}", scattered, scatter_work(moved, ALIGNMENT)
    for biased in shapes.BIASED:
        yield f"indexed_bias_add {biased}", partial(biased.biased, device), bias_work(biased)


def agrees(name: str, call: Call) -> bool:
    """Roughly: the tests do it properly. Forward and gradients, to two roundings of bf16 of the largest entry."""
    leaves = [value for value in call.args if isinstance(value, torch.Tensor) and value.requires_grad]
    results = []
    for function in (call.fn, getattr(reference, name)):
        result = function(*call.args)
        result = result if isinstance(result, torch.Tensor) else result[0]
        upstream = torch.ones_like(result)
        results.append([result.detach(), *torch.autograd.grad(result, leaves, upstream)])
    pairs = zip(*results, strict=True)
    return all((a.float() - b.float()).abs().max() <= 2**-7 * b.float().abs().max() for a, b in pairs)


def launches(run: Callable[[], object]) -> int:
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def time(device: Device, call: Call, direction: Any) -> float:
    """Device time of one call, µs."""
    run = forward(call) if direction == "forward" else backward(call)
    workload = Workload(run, "cold", copies(call, direction), touched_bytes(call, run()))
    meter = prepare_device_time(workload, device, seconds=0.3)
    blocks = [meter.block() for _ in range(BLOCKS)]
    return statistics.median(block for block in blocks if block is not None)


def main(words: list[str]) -> None:
    device = open_device("auto")
    ceiling = device.copy_bytes_per_second()
    print(f"{device.identity.name}: copy {ceiling / 1e12:.2f} TB/s")
    for title, draw, work in calls("cuda"):
        if not all(word in title for word in words):
            continue
        name = title.split()[0]
        torch.manual_seed(0)
        arguments = draw()
        for candidate in range(MAX_CANDIDATES):
            call = Call(partial(getattr(operators, name), candidate=candidate), arguments, getattr(reference, name))
            try:
                right = agrees(name, call)
            except ValueError as error:  # so many candidates are there not
                assert str(error).startswith("candidate: "), error  # noqa: PT017
                break
            except Exception as error:  # a candidate that does not compile hides no other
                print(f"{title:55} {candidate}  {type(error).__name__}: {error}", flush=True)
                continue
            if not right:
                print(f"{title:55} {candidate}  WRONG", flush=True)
                continue
            for direction, moved, run in (
                ("forward", work.bytes, forward(call)),
                ("backward", work.backward_bytes, backward(call)),
            ):
                took = time(device, call, direction)
                share = 100 * (moved or 0) / took * 1e6 / ceiling
                print(
                    f"{title:55} {candidate} {direction:8} {took:8.1f} µs {share:5.0f} % {launches(run):2}", flush=True
                )


if __name__ == "__main__":
    main(sys.argv[1:])
