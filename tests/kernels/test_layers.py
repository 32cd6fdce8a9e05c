"""Blocks and models of them: positions, configurations, weights. What they compute stands in test_layers_guarded.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.layers import BlockConfig, MoEBlock, Transformer, build_block, reference, rope_table, rotate
from kernels.layers.config import LatentAttention
from kernels.layers.shapes import BLOCKS, BlockShape, Kind, block_config
from kernels.moe import MoEConfig
from kernels.moe.shapes import LOADS, MODELS, Load, set_load
from perfguard.check.numerics.oracle import run_wide
from tests.kernels.layers_cases import CONFIGS, LOOP

MOE = MoEConfig(dim=32, hidden=48, experts=4, top_k=2)


def test_positions_turn_and_keep_lengths() -> None:
    table, x = rope_table(50, 8), torch.randn(2, 50, 3, 8)
    turned = rotate(x, table)
    assert torch.equal(turned[:, 0], x[:, 0])  # position 0 stands still
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)
    assert turned.dtype == x.dtype
    assert rotate(x.bfloat16(), table).dtype == torch.bfloat16


def test_scores_depend_on_the_distance_of_positions_alone() -> None:
    table = rope_table(64, 8)
    q, k = torch.randn(8).expand(1, 64, 1, 8), torch.randn(8).expand(1, 64, 1, 8)
    scores = rotate(q, table)[0, :, 0] @ rotate(k, table)[0, :, 0].t()
    for distance in (-5, 0, 7):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5)


def test_angles_of_far_positions_are_right() -> None:
    """In float32 the product of position and frequency is off by thousandths there."""
    position, width = 131_071, 64
    wanted = torch.cos(position * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width))
    assert torch.allclose(rope_table(position + 1, width)[-1, :, 0].double(), wanted, atol=1e-6)


@pytest.mark.parametrize(("positions", "length"), [(1, 2), (1, 4), (3, 4), (4, 9)])
def test_a_sequence_longer_than_the_table_is_refused(positions: int, length: int) -> None:
    """A table of one position would be taken for all of them."""
    model = Transformer([CONFIGS["dense"]], 11, positions=positions)
    with pytest.raises(ValueError, match=f"^ids: are {length} long; may be {positions} at most"):
        model(torch.zeros(2, length, dtype=torch.int64))
    assert model(torch.zeros(2, positions, dtype=torch.int64)).shape == (2, positions, 11)


def test_positions_stay_apart_in_a_model_of_bf16() -> None:
    model = Transformer([CONFIGS["dense"]], 11, positions=300)
    expected = model.rope.clone()
    assert torch.equal(model.bfloat16().rope, expected)
    assert model.head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", CONFIGS)
def test_meta_tensors_pass(name: str) -> None:
    model = Transformer([CONFIGS[name]], 11, positions=8, device="meta")
    assert model(torch.empty(2, 8, dtype=torch.int64, device="meta")).shape == (2, 8, 11)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_token_sees_a_later_one(name: str) -> None:
    block = build_block(CONFIGS[name], dtype=torch.bfloat16)
    x, rope = torch.randn(1, 9, 32).bfloat16(), rope_table(9, CONFIGS[name].rotated)
    whole = block(x, rope)
    x[:, 6:] = 7.0
    changed = block(x, rope)
    assert torch.equal(whole[:, :6], changed[:, :6])
    assert not torch.equal(whole[:, 6:], changed[:, 6:])


@pytest.mark.parametrize("name", ["dense", "dense-latent"])
def test_the_reference_takes_long_sequences_by_the_heads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same but for the rounding of float64 (some CPUs round products of other batches otherwise), also where the
    oracle widens what is asked for."""
    block, rope = build_block(CONFIGS[name]), rope_table(9, CONFIGS[name].rotated)
    x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)

    def values() -> list[torch.Tensor]:
        y = reference.block(block, x, rope)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *block.parameters()])]

    at_once = run_wide(values, torch.float64)
    heads = 3  # of four: the last share is smaller
    monkeypatch.setattr(reference, "_SCORES", heads * 2 * 9 * 9)
    in_shares = run_wide(values, torch.float64)
    for one, other in zip(at_once, in_shares, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim: is 0"),
        ({"heads": 0}, "heads: is 0"),
        ({"heads": 3}, "heads: is 3 for 32 columns"),
        ({"heads": 32}, "head_dim: is 1; may be even"),
        ({"head_dim": 9}, "head_dim: is 9; may be even"),
        ({"kv_heads": 3}, "kv_heads: is 3; may be a divisor of 4"),
        ({"kv_heads": 0}, "kv_heads: is 0"),
        ({"hidden": 0}, "hidden: is 0; may be 1 or more in a block without `moe`"),
        ({"moe": MOE, "dim": 64}, "moe: is 32 wide; may be 64"),
    ],
)
def test_wrong_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockConfig(**{"dim": 32, "heads": 4, "hidden": 48, **changes})


@pytest.mark.parametrize(
    ("widths", "message"),
    [({"rope": 3}, "rope: is 3; may be even"), ({"rope": 0}, "rope: is 0"), ({"v": 0}, "v: is 0; may be 1 or more")],
)
def test_wrong_widths_of_latent_attention_are_refused(widths: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        LatentAttention(**widths)


def test_a_model_s_blocks_are_of_one_width() -> None:
    dense = CONFIGS["dense"]
    for configs in ([], [dense, BlockConfig(dim=64, heads=4, hidden=48)]):
        with pytest.raises(ValueError, match="configs: have"):
            Transformer(configs, 16, positions=4)


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("model", MODELS)
def test_the_table_of_models_can_be_built(model: str, kind: Kind) -> None:
    config = block_config(model, kind)
    block = build_block(config, device="meta", dtype=torch.bfloat16)
    dim, latent = config.dim, config.latent
    if latent is None:
        attention = 2 * dim * config.width * (config.heads + (config.kv_heads or config.heads))
    else:
        attention = dim * (config.heads * (latent.nope + latent.rope) + latent.kv_lora + latent.rope) + latent.kv_lora
        attention += config.heads * (latent.kv_lora * (latent.nope + latent.v) + latent.v * dim)
    found = sum(parameter.numel() for name, parameter in block.named_parameters() if not name.startswith("moe."))
    feed_forward = 3 * dim * config.hidden if kind == "dense" else 0
    assert found == attention + feed_forward + 2 * dim
    assert isinstance(block, MoEBlock) == (kind == "moe")


def test_initial_weights() -> None:
    """torch draws differently for other shapes, so spreads are compared, not values."""
    deep = 0.02 / 4  # of layer 7
    moe = MoEConfig(dim=64, hidden=48, experts=4, top_k=2)
    for config in (BlockConfig(dim=64, heads=4, hidden=96), BlockConfig(dim=64, heads=4, moe=moe)):
        block = build_block(config, layer=7)
        for name, parameter in block.named_parameters():
            if parameter.ndim == 1:
                assert bool((parameter == 1).all()), name
                continue
            narrow = name.endswith(("w2", "w3", "wo.weight", "router.weight"))
            assert float(parameter.detach().std()) == pytest.approx(deep if narrow else 0.02, rel=0.15), name


@pytest.mark.parametrize("load", LOADS)
def test_loads_decide_which_experts_get_tokens(load: Load) -> None:
    block = build_block(BlockConfig(dim=32, heads=4, moe=MoEConfig(dim=32, hidden=8, experts=8, top_k=2)))
    assert isinstance(block, MoEBlock)
    set_load(block.moe, "half" if load == "learned" else "learned")  # whatever stood before is gone
    set_load(block.moe, load)
    block(torch.randn(4, 32, 32), rope_table(32, 8))
    busy = (block.moe.tokens_per_expert > 0).tolist()
    assert (
        busy
        == {
            "learned": [True] * 8,
            "hot": [True] * 2 + [False] * 6,
            "half": [True] * 4 + [False] * 4,
        }[load]
    )


def test_shapes_name_themselves_and_fit_their_blocks() -> None:
    assert len({str(shape) for shape in BLOCKS}) == len(BLOCKS)
    assert str(BlockShape("dsv3-debug", "moe", 1, 40, "hot")) == "dsv3-debug-moe-b1-s40-hot"
    for shape in BLOCKS:
        x, rope = shape.inputs("meta")
        assert shape.block("meta").attend(x, rope).shape == x.shape


def test_a_model_runs_and_differentiates_every_parameter() -> None:
    model = Transformer([CONFIGS["dense"], CONFIGS["moe"]], 50, positions=20, dtype=torch.bfloat16)
    logits = model(torch.randint(50, (2, 11)))
    assert logits.shape == (2, 11, 50)
    logits.float().square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_one_by_one_is_the_same_function() -> None:
    grouped, loop = (build_block(LOOP, loop=loop, dtype=torch.bfloat16) for loop in (False, True))
    loop.load_state_dict(grouped.state_dict())
    x, rope = torch.randn(2, 9, 32).bfloat16(), rope_table(9, 8)
    assert torch.allclose(grouped(x, rope).float(), loop(x, rope).float(), atol=0.02)
