"""DualPipeV and zero-bubble pipelines over torch's schedules, with layers in parts (`stages.py`) as their stages.

Of 2 P stages rank r of P holds stages r and 2 P − 1 − r: the first and the last lie on one rank. Where a schedule pairs
a forward pass with a backward pass, the parts of the two take turns, so that the rows of one travel while the other
computes. Backward passes for inputs alone leave the weights' to a queue, which the schedule empties when it has time.

Origin: DeepSeek's DualPipe and its DualPipeV, zero-bubble pipelines (Qi et al. 2023), `ScheduleDualPipeV` and
`ScheduleZBVZeroBubble` of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleDualPipeV, ScheduleZBVZeroBubble

from kernels.compat.pipelining import TurningStage, overlap_pairs
from kernels.layers import Block, Transformer
from kernels.moe.partition import layer_partition
from kernels.operators.weight_grad_store import WeightGradStore
from kernels.parallel.stages import LayerRun, Part, Parts


class StageModule(nn.Module):
    """Some layers of a `Transformer`: token ids or x (B, S, D) -> x, or logits in the last stage."""

    rope: Tensor

    def __init__(self, model: Transformer, layers: range, first: bool, last: bool) -> None:
        """Takes what it needs of `model`, whose layers keep their numbers."""
        super().__init__()
        self.embedding = model.embedding if first else None
        self.layers = nn.ModuleDict({str(number): model.layers[number] for number in layers})
        self.norm, self.head = (model.norm, model.head) if last else (None, None)
        self.register_buffer("rope", model.rope, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x_BSD = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x_BSD = layer(x_BSD, self.rope[: x.shape[1]])
        return self._end(x_BSD)

    def _end(self, x_BSD: Tensor) -> Tensor:
        if self.norm is None or self.head is None:
            return x_BSD
        logits: Tensor = self.head(self.norm(x_BSD))
        return logits


class StageRun:
    """A stage on one micro-batch.

    Attributes:
        out: what it says, a leaf whose gradient is that of the stage.
    """

    out: Tensor

    def __init__(self, module: StageModule) -> None:
        self.module = module
        self.layers: list[LayerRun] = []
        self._start: Part | None = None
        self._end: Part | None = None

    def forward(self, x: Tensor) -> Parts:
        module = self.module
        rope = module.rope[: x.shape[1]]
        if module.embedding is not None:
            embedding = module.embedding
            self._start = Part(lambda ids: [embedding(ids)], embedding, x)
            (x,) = self._start.outputs
        for layer in module.layers.values():
            assert isinstance(layer, Block)
            run = LayerRun(layer, rope)
            x = yield from run.forward(x)
            self.layers.append(run)
        if module.head is not None:
            self._end = Part(lambda x: [module._end(x)], module, x)
            (x,) = self._end.outputs
        self.out = x.detach().requires_grad_()
        return self.out

    def backward(self, grad: Tensor | None, store: WeightGradStore | None) -> Parts:
        if self._end is not None:
            (grad,) = self._end.backward(grad, store=store)
        while self.layers:
            assert grad is not None
            grad = yield from self.layers.pop().backward(grad, store)
        if self._start is not None:
            self._start.backward(grad, store=store)
            grad = None
        return grad


class Stage(TurningStage):
    """A stage whose passes run part by part; for torch's schedules.

    Attributes:
        runs: micro-batches whose backward pass has not run yet.
        store: weight gradients that wait.
        freed: how often memory of rows was freed.
        turns: how often a part of one pass ran between two parts of the other.
    """

    def __init__(self, module: StageModule, index: int, stages: int, group: dist.ProcessGroup | None = None) -> None:
        device = next(module.parameters()).device
        super().__init__(module, index, stages, device, group=group)
        self.module = module
        self.runs: dict[int, StageRun] = {}
        self.store = WeightGradStore()
        self.freed = 0
        self.turns = 0
        self.meanwhile: tuple[Stage, Callable[[], None]] | None = None  # runs a backward pass beside the next forward
        self._beside: Parts | None = None
        self._chunk = -1

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._chunk = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self._chunk = bwd_chunk_id
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self._chunk = bwd_chunk_id
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        run = self.runs[self._chunk] = StageRun(self.module)
        parts = run.forward(*args)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None:
            take_turns(parts, None)
        else:
            other, backward = meanwhile
            other._beside = parts
            backward()
        self.freed += sum(layer.freed for layer in run.layers)
        return run.out

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]] | None]:
        """Of the schedule: "full", "input" (weights wait in `store`) or "weight" (the oldest of them)."""
        if backward_type == "weight":
            self.store.pop()
            return (), []
        run = self.runs[self._chunk]
        gradients = bwd_kwargs["output_grads"]
        if gradients is None:
            (loss,) = loss if isinstance(loss := bwd_kwargs["stage_output"], tuple) else (loss,)
            (grad,) = torch.autograd.grad(loss, run.out)
        else:
            (grad,) = gradients
        beside, self._beside = self._beside, None
        if backward_type == "full":
            found, turns = take_turns(run.backward(grad, None), beside)
            self.turns += turns
        else:
            with self.store:
                found, _ = take_turns(run.backward(grad, self.store), beside)
                self.store.flush()
        del self.runs[self._chunk]
        return (found,), []


def take_turns(parts: Parts, beside: Parts | None) -> tuple[Tensor | None, int]:
    """Run all of `parts`, and a part of `beside` after each of them, then its rest. What `parts` returned, and how
    often `beside` ran between two of `parts`."""
    turns = 0
    while True:
        try:
            next(parts)
        except StopIteration as end:
            for _ in beside or ():
                pass
            return end.value, max(0, turns - 1)
        if beside is not None and next(beside, None) is not None:
            turns += 1


def build_stages(
    model: Transformer, group: dist.ProcessGroup | None = None, sizes: Sequence[int] | None = None
) -> list[Stage]:
    """This rank's two of the 2 P stages of a V; the model is the same on all P ranks of `group`.

    Args:
        sizes: layers of each stage, in order; by default as `moe.layer_partition` has it.

    Raises:
        ValueError: fewer layers than stages, or sizes of another sum or number.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    count = 2 * ranks
    sizes = layer_partition(len(model.layers), count) if sizes is None else list(sizes)
    if len(sizes) != count or sum(sizes) != len(model.layers):
        raise ValueError(f"sizes: are {sizes}; give {count} of them, {len(model.layers)} layers in all")
    stages = []
    for index in (rank, count - 1 - rank):
        start = sum(sizes[:index])
        module = StageModule(model, range(start, start + sizes[index]), index == 0, index == count - 1)
        stages.append(Stage(module, index, count, group))
    return stages


def dual_pipe_v(stages: list[Stage], chunks: int, loss: Callable[[Tensor, Tensor], Tensor]) -> ScheduleDualPipeV:
    """torch's DualPipeV of so many micro-batches, whose pairs take turns; `.step(ids, target=…)` runs one step.

    Raises:
        ValueError: fewer micro-batches than stages.
    """
    schedule = ScheduleDualPipeV(list(stages), chunks, loss)

    def pair(stage: Stage, forward: Callable[[], Any], other: Stage, backward: Callable[[], Any]) -> None:
        stage.meanwhile = (other, backward)
        forward()

    overlap_pairs(schedule, pair)
    return schedule


def zero_bubble_v(stages: list[Stage], chunks: int, loss: Callable[[Tensor, Tensor], Tensor]) -> ScheduleZBVZeroBubble:
    """torch's zero-bubble V, the control of `dual_pipe_v`: no pairs, and every backward pass in two."""
    return ScheduleZBVZeroBubble(list(stages), chunks, loss)
