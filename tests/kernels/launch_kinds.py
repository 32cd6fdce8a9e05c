"""Launch one kernel in many ways, prepared and by Triton itself, and say which binaries were taken.

    python -m tests.kernels.launch_kinds

A process of its own, because the tests define kernels as interpreted functions. No driver is needed: a stub takes the
launches. Prints a JSON object for each way: its number, the binary of the second prepared launch, and Triton's.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from benchmarks import host
from kernels.launch import Launch


@triton.jit(do_not_specialize=["rows"])
def _kernel(x_ptr, y_ptr, rows, width, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at * width, mask=at < rows, other=0) * factor
    if y_ptr is not None:
        tl.store(y_ptr + at, value, mask=at < rows)


@gluon.jit
def _described(descriptor, other):  # type: ignore[no-untyped-def]
    pass


def descriptors() -> list[tuple[Any, Any]]:
    """Of Gluon and of Triton, which differ in the dtype of their tensors or in their tiles."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=32, element_bitwidth=16, rank=2)
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.zeros(64, 64, dtype=dtype)
        for tile in ([16, 16], [32, 16]):
            gluons = TensorDescriptor(x, [64, 64], [64, 1], tile, layout)
            found.append((gluons, None))
    return found


def main() -> None:
    launched: list[str] = []

    def launcher_of(source: Any, metadata: Any) -> Any:
        def launch_nothing(*arguments: Any) -> None:
            launched.append(metadata.hash)
            arguments[7](arguments[6])  # the hook, which gets what it gets

        return launch_nothing

    host.launcher_of = launcher_of
    buffer = torch.zeros(256)
    hooked: list[object] = []
    with host.stubbed():
        triton.knobs.runtime.launch_enter_hook.add(hooked.append)
        own = {"num_warps": 1}
        plain, described = Launch(_kernel, BLOCK=32, **own), Launch(_described, **own)
        aligned, shifted = buffer[:64], buffer[1:65]
        ways: list[tuple[Any, ...]] = [(x, aligned, 64, 7) for x in (aligned, shifted, buffer[4:68], buffer.bfloat16())]
        ways += [(aligned, y, 64, 7) for y in (shifted, None)]
        ways += [(aligned, aligned, rows, 7) for rows in (1, 17, 2**31, -1)]
        widths = (0, 1, 2, 16, 17, 2**31 - 1, 2**31, 2**31 + 16, -1, -16)
        ways += [(aligned, aligned, 64, width) for width in widths]
        calls = [(plain, (*way, 2.0)) for way in ways] + [(described, way) for way in descriptors()]
        for number, (launch, arguments) in enumerate(calls):
            launch(aligned.device, 1, *arguments)
            before = len(hooked)
            launch(aligned.device, 1, *arguments)
            prepared, seen = launched[-1], len(hooked) - before
            binary = launch.kernel[(1,)](*arguments, **launch.constants).metadata.hash
            print(json.dumps({"way": number, "prepared": prepared, "own": binary, "hooked": seen}))


if __name__ == "__main__":
    main()
