"""Time the candidates of the layer's own kernels on this GPU: what the tables in kernels/moe/configs.py go by.

    python -m tests.kernels.moe_sweep [words to find in call and shape]

Prints for each candidate the device time of one call with a cold cache, and the share of the copy ceiling that its
inputs and outputs in that time are. A candidate whose results are not those of the first is not timed.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from kernels.launch import MAX_CANDIDATES
from perfguard.measure.devices import open_device
from perfguard.measure.replay import touched_bytes
from perfguard.model.call import Call
from tests.kernels.operator_sweep import time
from tests.kernels.targets import SIZES, layer_kernels

TOKENS = 8192


def agree(one: object, other: object) -> bool:
    """To the rounding of bf16: sums of products have another order."""
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(torch.allclose(a.float(), b.float(), rtol=2**-8, atol=1e-3) for a, b in pairs)


def _tensors(result: object) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)  # type: ignore[return-value]


def main(words: list[str]) -> None:
    device = open_device("auto")
    ceiling = device.copy_bytes_per_second()
    print(f"{device.identity.name}: copy {ceiling / 1e12:.2f} TB/s")
    for sizes in SIZES:
        for name, (function, arguments) in layer_kernels(*sizes, TOKENS, "cuda").items():
            title = f"{name} {'x'.join(map(str, (TOKENS, *sizes)))}"
            if not all(word in title for word in words):
                continue
            first = function(*arguments, candidate=0)
            for candidate in range(MAX_CANDIDATES):
                call = Call(partial(function, candidate=candidate), arguments, function)
                try:
                    result = call.run()
                except ValueError as error:  # so many candidates are there not
                    assert str(error).startswith("candidate: "), error  # noqa: PT017
                    break
                if not agree(result, first):
                    print(f"{title:45} {candidate}  WRONG", flush=True)
                    continue
                took = time(device, call, "forward")
                share = 100 * touched_bytes(call, result) / took * 1e6 / ceiling
                print(f"{title:45} {candidate} {took:8.1f} µs {share:5.0f} %", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
