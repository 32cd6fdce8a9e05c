"""Launch one kernel in many ways, prepared and by Triton itself, and say which binaries were taken.

    python -m tests.kernels.launch_kinds

A process of its own, because the tests define kernels as interpreted functions. No driver is needed: a stub takes the
launches. Prints a JSON object for each way: the arguments, the binary of the second prepared launch, and Triton's.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks import host
from kernels.launch import Launch


@triton.jit(do_not_specialize=["rows"])
def _kernel(x_ptr, y_ptr, rows, width, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at * width, mask=at < rows, other=0) * factor
    if y_ptr is not None:
        tl.store(y_ptr + at, value, mask=at < rows)


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
        launch = Launch(_kernel, BLOCK=32, num_warps=1)
        aligned, shifted = buffer[:64], buffer[1:65]
        ways: list[tuple[Any, ...]] = [(x, aligned, 64, 7) for x in (aligned, shifted, buffer[4:68], buffer.bfloat16())]
        ways += [(aligned, y, 64, 7) for y in (shifted, None)]
        ways += [(aligned, aligned, rows, 7) for rows in (1, 17, 2**31, -1)]
        widths = (0, 1, 2, 16, 17, 2**31 - 1, 2**31, 2**31 + 16, -1, -16)
        ways += [(aligned, aligned, 64, width) for width in widths]
        for x, y, rows, width in ways:
            arguments = x, y, rows, width, 2.0
            launch(x.device, 1, *arguments)
            before = len(hooked)
            launch(x.device, 1, *arguments)
            prepared, calls = launched[-1], len(hooked) - before
            own = _kernel[(1,)](*arguments, BLOCK=32, num_warps=1).metadata.hash
            print(json.dumps({"arguments": [str(x.dtype), x.storage_offset(), y is None, rows, width],
                              "prepared": prepared, "own": own, "hooked": calls}))  # fmt: skip


if __name__ == "__main__":
    main()
