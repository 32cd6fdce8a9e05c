"""Fused cross entropy against liger-kernel, where it can be imported, and against torch, eager and compiled.

Two jobs. Logits kept: whoever writes the gradient over them gets a clone. In place: the logits may be lost; torch,
which never does that, is timed in the first job only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.contest import Call, Contest
from benchmarks.peers.operators import compiled
from kernels import operators
from kernels.operators.shapes import CROSS_ENTROPY, LogitsShape

try:  # a peer, not a dependency
    from liger_kernel.transformers.functional import liger_cross_entropy
except ImportError:
    liger_cross_entropy = None

Loss = Callable[[Tensor, Tensor], Tensor]


def contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    shape = LogitsShape(8, 1000) if smoke else CROSS_ENTROPY[0]
    logits, target = (tensor.detach() for tensor in shape.inputs(device))
    moved = 4 * shape.elements  # bf16 logits read once, their gradient written once
    kept: dict[str, Loss] = {
        "ours": operators.cross_entropy,
        "torch eager": F.cross_entropy,
        "torch compiled": compiled(F.cross_entropy, smoke),
    }
    in_place: dict[str, Loss] = {"ours": partial(operators.cross_entropy, inplace=True)}
    if liger_cross_entropy is not None and device.type == "cuda":
        kept["liger, clone"] = lambda logits, target: liger_cross_entropy(logits.clone(), target)
        in_place["liger"] = liger_cross_entropy
    rivals: dict[str, Call] = {name: partial(_trained, loss, logits, target) for name, loss in kept.items()}
    yield Contest("cross entropy", str(shape), rivals, tolerance=0.05, bytes=moved)
    rivals = {name: partial(_trained, loss, logits, target) for name, loss in in_place.items()}
    # Each call finds what the one before it wrote, so results differ; the time does not depend on them.
    yield Contest("cross entropy in place", str(shape), rivals, tolerance=None, bytes=moved)


def _trained(loss: Loss, logits: Tensor, target: Tensor) -> list[Tensor]:
    logits = logits.detach().requires_grad_()  # the same memory
    value = loss(logits, target)
    (gradient,) = torch.autograd.grad(value, logits)
    return [value.detach(), gradient]
