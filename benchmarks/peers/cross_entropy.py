"""Fused cross entropy against liger-kernel, where it can be imported, and against torch, eager and compiled.

Three jobs. Logits kept: whoever writes the gradient over them gets a clone. In place: the logits may be lost; torch,
which never does that, is timed in the first job only. With the linear layer that makes the logits: how much memory it
takes is as much the question as how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.contest import Call, Contest
from benchmarks.peers.operators import compiled
from kernels import operators
from kernels.operators.shapes import CROSS_ENTROPY, LINEAR_CROSS_ENTROPY, LogitsShape, ProjectedShape

try:  # a peer, not a dependency
    from liger_kernel.transformers.functional import liger_cross_entropy, liger_fused_linear_cross_entropy
except ImportError:
    liger_cross_entropy = liger_fused_linear_cross_entropy = None

Loss = Callable[..., Tensor]


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
    rivals: dict[str, Call] = {name: partial(_trained, loss, [logits], target) for name, loss in kept.items()}
    yield Contest("cross entropy", str(shape), rivals, tolerance=0.05, bytes=moved)
    rivals = {name: partial(_trained, loss, [logits], target) for name, loss in in_place.items()}
    # Each call finds what the one before it wrote, so results differ; the time does not depend on them.
    yield Contest("cross entropy in place", str(shape), rivals, tolerance=None, bytes=moved)
    layer = ProjectedShape(8, 16, 1000) if smoke else LINEAR_CROSS_ENTROPY[0]
    *tensors, target = (tensor.detach() for tensor in layer.inputs(device))
    linear: dict[str, Loss] = {
        "ours": operators.linear_cross_entropy,
        "torch eager": lambda x, w, target: F.cross_entropy(F.linear(x, w), target),
    }
    if liger_fused_linear_cross_entropy is not None and device.type == "cuda":
        linear["liger"] = liger_fused_linear_cross_entropy
        linear["liger, fp32 sums"] = partial(liger_fused_linear_cross_entropy, accum_dtype=torch.float32)
    rivals = {name: partial(_trained, loss, tensors, target) for name, loss in linear.items()}
    yield Contest("linear cross entropy", str(layer), rivals, tolerance=0.05, flop=3 * layer.flop)


def _trained(loss: Loss, inputs: Sequence[Tensor], target: Tensor) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in inputs]  # the same memory
    value = loss(*leaves, target)
    return [value.detach(), *torch.autograd.grad(value, leaves)]
