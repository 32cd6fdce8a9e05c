"""Transformer blocks under guard, eager against compiled, forward and backward.

Eager's error is that of the block itself, uncompiled and in its own precision; the oracle is the reference in float64.
So "right" means: compiled at most twice as far from the truth as eager, output and every gradient.

On a GPU blocks of real models are compiled by inductor and timed. On a CPU small ones are traced, differentiated and
run operator by operator ("aot_eager"): what inductor makes of one stands in test_layers_compiled.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels.layers import Block, BlockConfig, MoEBlock, Transformer, apply_compile, build_block, reference, rope_table
from kernels.layers.shapes import BLOCKS, BlockShape
from kernels.moe.shapes import Load, set_load
from perfguard import Hard, ids
from tests.kernels.layers_cases import CONFIGS, LOOP, model_of
from tests.kernels.paths import COMPILING, GPU

pytestmark = COMPILING

PRECISIONS = ["bf16", "fp8"]
BACKEND = "inductor" if GPU else "aot_eager"
HARD = Hard(
    without=["non-finite"], reason="torch's fused attention on a CPU makes finite values of queries that are NaN"
)


def guard(perfguard: Any, block: Block, x: Tensor, rope: Tensor, *, walk: Any = (), timed: bool) -> None:
    block.eval()  # counters are no output: a call may not change what the next one sees
    apply_compile(model_of([block]), backend=BACKEND)
    perfguard(block, x.requires_grad_(), rope, reference=truth_of(block), walk=walk, timed=timed, hard=HARD)


def truth_of(block: Block) -> Callable[[Tensor, Tensor], Tensor]:
    """The reference in float64, the block itself uncompiled in its own precision."""

    def truth(x: Tensor, rope: Tensor) -> Tensor:
        return reference.block(block, x, rope) if x.dtype == torch.float64 else block.forward(x, rope)

    return truth


@pytest.mark.skipif(not GPU, reason="real widths need a GPU")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", BLOCKS, ids=str)
def test_block(perfguard: Any, shape: BlockShape, precision: str) -> None:
    block = shape.block(perfguard.device, precision=precision)
    guard(perfguard, block, *shape.inputs(perfguard.device), timed=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_small_block_eager(perfguard: Any, name: str) -> None:
    """The block itself, against the reference: what the compiled ones are then held against."""
    block = build_block(CONFIGS[name], device=perfguard.device, dtype=torch.bfloat16).eval()
    x, rope = inputs(block.config, perfguard.device, (2, 12))
    truth = functools.partial(reference.block, block)
    perfguard(block, x.requires_grad_(), rope, reference=truth, timed=False, hard=HARD)


def test_small_transformer(perfguard: Any) -> None:
    """As it comes when nothing but its blocks is named: experts together, in the model's own dtype."""
    model = Transformer([CONFIGS["moe"]], 50, positions=12, device=perfguard.device, dtype=torch.bfloat16).eval()

    def truth(tokens: Tensor) -> Tensor:
        x = model.embedding(tokens)
        for layer in model.layers:
            x = reference.block(layer, x, model.rope[: tokens.shape[1]])
        return model.head(model.norm(x))

    tokens = torch.randint(50, (2, 12), device=perfguard.device)
    perfguard(model, ids(tokens, 50), reference=truth, timed=False, hard=HARD)


# Every kind of attention and feed-forward in either precision is compiled on a GPU; here some of each.
SMALL = (
    [(name, precision) for name in CONFIGS for precision in PRECISIONS] if GPU else [("dense", "bf16"), ("moe", "fp8")]
)


@pytest.mark.parametrize(("name", "precision"), SMALL)
def test_small_block(perfguard: Any, name: str, precision: str) -> None:
    """Walked over sequences and token counts, and, where there are experts, over their loads."""
    block = build_block(CONFIGS[name], precision=precision, device=perfguard.device, dtype=torch.bfloat16)
    guard_small(perfguard, block)


def test_small_block_with_experts_one_by_one(perfguard: Any) -> None:
    """Counts are read on the host and become sizes that the compiler does not know."""
    guard_small(perfguard, build_block(LOOP, loop=True, device=perfguard.device, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["dense", "moe"] if GPU else ["dense"])
def test_cold_model(perfguard: Any, name: str) -> None:
    """What it takes to compile a model of one block with empty caches and with kept ones, and what each more adds:
    equal blocks share a graph."""

    def build(layers: int) -> nn.Module:
        blocks = [build_block(CONFIGS[name], device=perfguard.device, dtype=torch.bfloat16) for _ in range(layers)]
        model = model_of(blocks).eval()
        apply_compile(model, backend=BACKEND)
        return model

    model = build(1)
    (block,) = model.layers
    x, rope = inputs(block.config, perfguard.device, (2, 12))
    depths = {layers: functools.partial(build, layers) for layers in (1, 4)}
    perfguard(model, x.requires_grad_(), rope, reference=truth_of(block), cold_start=depths, hard=HARD)


def guard_small(perfguard: Any, block: Block) -> None:
    x, rope = inputs(block.config, perfguard.device, (2, 12))
    guard(perfguard, block, x, rope, walk=steps(block, perfguard.device), timed=False)


# Other loads at the case's own size; other sequences and an odd number of tokens, from which on sizes are symbols; once
# more other ones, which cost nothing unless each size has a graph of its own (`dynamic=False`); a single token, which
# the compiler treats apart. The others cost a compilation, which takes seconds.
WALK: list[tuple[tuple[int, int], Load]] = [
    ((2, 12), "hot"),
    ((2, 12), "half"),
    ((3, 9), "learned"),
    ((4, 7), "learned"),
    ((1, 1), "half"),
]


def steps(block: Block, device: torch.device) -> list[Any]:
    """A step for each entry of WALK."""

    def step(size: tuple[int, int], load: Load) -> Any:
        def prepare() -> tuple[Tensor, Tensor]:
            if isinstance(block, MoEBlock):
                set_load(block.moe, load)
            x, rope = inputs(block.config, device, size)
            return x.requires_grad_(), rope

        return prepare

    return [step(size, load) for size, load in WALK]


def inputs(config: BlockConfig, device: torch.device, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    x = torch.randn(*size, config.dim, device=device, dtype=torch.bfloat16)
    return x, rope_table(size[1], config.rotated, device=device)
