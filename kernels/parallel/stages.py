"""One layer in five parts, so that the layer of another micro-batch runs while its rows travel.

    attend     attention, router, rows in the order of experts        -> rows leave for their experts' ranks
    dispatch       (on the way)
    experts    on the rows that arrived                               -> rows leave for their tokens' ranks
    combine        (on the way)
    finish     weighted sum of a token's rows, shared experts, residual

The backward pass runs the same parts from the last to the first. Each part is a graph of autograd's by itself, between
leaves: what lies between parts is sent, not differentiated. Rows that were sent are needed no more once they have
arrived: their memory is freed there, and not when autograd would let go of it, three times a layer. Without ranks that
rows travel to there is nothing to wait for and nothing to free: rows of one part are then those of the next.

Origin: DeepSeek-V3 (arXiv 2412.19437, 3.2.1), DeepSeek's DualPipe.

Shape suffixes: B sequences, S positions, T tokens, D model width, K experts a token, M and R rows as in `moe.exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernels.compat.collectives import wait
from kernels.compat.pipelining import backward_inputs
from kernels.layers import Block, MoEBlock
from kernels.moe import collect, spread
from kernels.moe.exchange import Exchange, agree, depart
from kernels.operators.weight_grad_store import WeightGradStore

# Names each part that has run; what it started to send is on its way until the next one.
Parts = Generator[str, None, Tensor | None]


class Part:
    """A function of tensors between leaves and what autograd makes of them."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], weights: nn.Module, *inputs: Tensor) -> None:
        self.leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        self.outputs = list(function(*self.leaves))
        self._weights = weights

    def backward(self, *gradients: Tensor | None, store: WeightGradStore | None) -> list[Tensor | None]:
        """Gradients of the inputs. Those of weights go to `.grad`, or into `store`."""
        pairs = [(out, grad) for out, grad in zip(self.outputs, gradients, strict=True) if grad is not None]
        outputs, given = [out for out, _ in pairs], [grad for _, grad in pairs]
        leaves, self.leaves, self.outputs = self.leaves, [], []
        if store is None:
            torch.autograd.backward(outputs, given)
        else:
            later, held = backward_inputs(outputs, given, leaves, list(self._weights.parameters()))
            store.put(later, held)
        return [leaf.grad for leaf in leaves]


class LayerRun:
    """One layer on one micro-batch, part by part.

    Attributes:
        freed: how often memory of rows was freed.
    """

    def __init__(self, block: Block, rope_SP2: Tensor) -> None:
        self.block, self.rope = block, rope_SP2
        self.freed = 0
        self.parts: list[Part] = []
        self.exchange: Exchange | None = None

    def forward(self, x_BSD: Tensor) -> Parts:
        block = self.block
        if not isinstance(block, MoEBlock):
            self.parts = [Part(lambda x: (block(x, self.rope),), block, x_BSD)]
            yield "layer"
            return self.parts[0].outputs[0]
        moe = block.moe
        dispatch: Any = None
        before = moe.config.weight_before

        def attend(x_BSD: Tensor) -> list[Tensor]:
            nonlocal dispatch
            h_BSD = block.attend(x_BSD, self.rope)
            y_TD = block.feed_forward_norm(h_BSD).flatten(0, 1)
            weights_TK, dispatch = moe.route(y_TD)
            rows_MD = spread(y_TD, weights_TK if before else None, dispatch)
            shared = [] if moe.shared is None else [moe.shared(y_TD, loop=moe.loop)]
            return [rows_MD, h_BSD, weights_TK, *shared]

        first = Part(attend, block, x_BSD)
        rows_MD, *kept = first.outputs
        exchange = self.exchange = None if moe.group is None else agree(dispatch.counts, rows_MD.shape[0], moe.group)
        in_flight = rows_MD if exchange is None else depart(rows_MD.detach(), exchange)
        yield "attend"

        def experts(rows: Tensor) -> list[Tensor]:
            if exchange is None:
                return [moe.experts(rows, dispatch, loop=moe.loop)]
            y_RD = moe.experts(spread(rows, None, exchange.local), exchange.local, loop=moe.loop)
            return [collect(y_RD, None, exchange.local)]

        arrived = self._arrived(in_flight, rows_MD)
        second = Part(experts, moe.experts, arrived)
        (y,) = second.outputs
        in_flight = y if exchange is None else depart(y.detach(), exchange.back)
        self._free(arrived)
        yield "experts"

        def finish(back_MD: Tensor, h_BSD: Tensor, weights_TK: Tensor, *shared: Tensor) -> list[Tensor]:
            out_TD = collect(back_MD, None if before else weights_TK, dispatch)
            out_TD = out_TD + shared[0] if shared else out_TD
            return [h_BSD + out_TD.view_as(h_BSD)]

        third = Part(finish, block, self._arrived(in_flight, y), *kept)
        self.parts = [first, second, third]
        yield "finish"
        return third.outputs[0]

    def backward(self, grad_BSD: Tensor, store: WeightGradStore | None) -> Parts:
        parts, exchange = self.parts, self.exchange
        self.parts = []
        if len(parts) == 1:
            (grad,) = parts[0].backward(grad_BSD, store=store)
            yield "layer"
            return grad
        first, second, third = parts
        grad_back, *grads = third.backward(grad_BSD, store=store)
        assert grad_back is not None
        in_flight = grad_back if exchange is None else depart(grad_back, exchange)
        yield "finish"
        (grad_arrived,) = second.backward(self._arrived(in_flight), store=store)
        assert grad_arrived is not None
        in_flight = grad_arrived if exchange is None else depart(grad_arrived, exchange.back)
        yield "experts"
        (grad,) = first.backward(self._arrived(in_flight), *grads, store=store)
        yield "attend"
        return grad

    def _arrived(self, in_flight: Tensor, sent: Tensor | None = None) -> Tensor:
        """What has travelled, there; the memory of what was sent goes."""
        if self.exchange is None:
            return in_flight
        arrived = wait(in_flight)
        if sent is not None:
            self._free(sent)
        return arrived

    def _free(self, rows: Tensor) -> None:
        """Rows that no part has saved: they were sent, or put into another order."""
        if self.exchange is not None:
            rows.untyped_storage().resize_(0)
            self.freed += 1
