"""What torch's pipelines keep for themselves: whom a stage connects to, the pair of a forward and a backward pass, and
backward passes that leave weights for later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.pipelining.schedules import OVERLAP_F_B

Run = Callable[[], Any]


class TurningStage(PipelineStage):
    """A stage whose neighbour may lie on its own rank, as at the turn of a V.

    Nothing is sent there. Torch 2.11 connects the two all the same, and gloo connects no rank to itself.
    """

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [each for each in super()._get_init_p2p_neighbors_ops() if each.group_peer != self.group_rank]


def overlap_pairs(schedule: Any, run: Callable[[Any, Run, Any, Run], None]) -> None:
    """Have `schedule` call `run(stage, forward, other, backward)` for each forward pass of one stage that it pairs with
    a backward pass of another: both are to be called, each once, `backward` within `forward` or behind it. Else torch
    calls one after the other.

    What was received is waited for before, and what other stages of this rank wait for is handed on after, as torch
    does for a single pass (`_PipelineScheduleRuntime._step_microbatches`).
    """

    def pair(action: Any, context: Any) -> None:
        first, second = action.sub_actions
        stages = {stage.stage_index: stage for stage in schedule._stages}
        stage, other = stages[first.stage_index], stages[second.stage_index]
        chunk, back = first.microbatch_index, second.microbatch_index
        if not stage.is_first and stage.stage_index - 1 not in stages:
            _wait(schedule.fwd_recv_ops.pop((stage.stage_index, chunk)))
        if not other.is_last and other.stage_index + 1 not in stages:
            _wait(schedule.bwd_recv_ops.pop((other.stage_index, back)))

        def forward() -> None:
            output = stage.forward_one_chunk(chunk, context.arg_mbs[chunk], context.kwarg_mbs[chunk])
            schedule._maybe_compute_loss(stage, output, context.target_mbs, chunk)
            if stage.stage_index + 1 in stages:
                stages[stage.stage_index + 1].set_local_fwd_input(output, chunk)

        def backward() -> None:
            schedule.backward_counter[other.stage_index] += 1
            last = schedule.backward_counter[other.stage_index] == schedule._n_microbatches
            loss = schedule._maybe_get_loss(other, back)
            other.backward_one_chunk(back, loss=loss, full_backward=True, last_backward=last)
            if other.stage_index - 1 in stages:
                stages[other.stage_index - 1].set_local_bwd_input(other.get_local_bwd_output(back), back)

        run(stage, forward, other, backward)

    schedule.register_custom_function(OVERLAP_F_B, pair)


def _wait(works: Iterable[Any]) -> None:
    for work in works:
        work.wait()


def backward_inputs(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[nn.Parameter]
) -> tuple[Run, list[Tensor]]:
    """Add gradients of inputs alone to their `.grad`. What then adds those of `weights`, and what that holds."""
    if torch.__version__ < "2.13":
        return _backward_twice(outputs, gradients, inputs, weights)
    _, groups = stage_backward_input(list(outputs), list(gradients), list(inputs), iter(weights))
    held = [each for group in groups for grads in group.get("grads", ()) if grads for each in grads if each is not None]

    @torch.enable_grad()  # torch looks for a weight's place in a graph that it makes
    def later() -> None:
        stage_backward_weight(iter(weights), groups)

    return later, held


def _backward_twice(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[nn.Parameter]
) -> tuple[Run, list[Tensor]]:
    """The same where torch cannot go on from the middle of a graph, behind an `autograd.Function`: for the weights the
    pass begins at `outputs` again."""

    def add(wanted: Sequence[Tensor], *, again: bool) -> None:
        wanted = [each for each in wanted if each.requires_grad]
        if wanted:
            torch.autograd.backward(outputs, gradients, retain_graph=again, inputs=wanted)

    add(inputs, again=True)
    return lambda: add(weights, again=False), list(gradients)
