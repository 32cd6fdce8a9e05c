"""The layer with experts in fp8, by the same switch: as close to bf16 as the contract asks, and the same choice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.moe import MoE
from tests.kernels.moe_cases import build, config, gradients, rmse, tokens

WHICH: dict[str, dict[str, str]] = {
    "routed": {"precision": "fp8"},
    "shared": {"shared_precision": "fp8"},
    "both": {"precision": "fp8", "shared_precision": "fp8"},
}


def sqnr_db(truth: Tensor, got: Tensor) -> float:
    error = rmse(truth, got)
    return math.inf if error == 0 else 20 * math.log10(float(truth.detach().double().square().mean().sqrt()) / error)


def twin(layer: MoE, **options: Any) -> MoE:
    other = MoE(layer.config, dtype=torch.bfloat16, **options)
    other.load_state_dict(layer.state_dict())
    return other


@pytest.mark.parametrize("which", WHICH)
def test_accuracy(which: str) -> None:
    """torchtitan's and torchao's layer, narrow: top 1 by sigmoid, one shared expert, MSE against ones."""
    layer = MoE(config(dim=256, hidden=256, experts=4, top_k=1, score="sigmoid", shared=1), dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.02)
    x = tokens(128, dim=256)

    def run(model: MoE) -> dict[str, Tensor]:
        out = model(x)
        loss = torch.nn.functional.mse_loss(out, torch.ones_like(out))
        return {"output": out, **gradients(model, loss, x, torch.ones(()))}

    bf16, fp8 = run(layer), run(twin(layer, **WHICH[which]))
    assert not torch.equal(bf16["output"], fp8["output"])  # else nothing was quantised
    assert sqnr_db(bf16["output"], fp8["output"]) >= 23
    for name in bf16.keys() - {"output", "x"}:  # x's 29 dB belong to a width where the router's path outweighs
        assert sqnr_db(bf16[name], fp8[name]) >= 21, name


def test_the_choice_is_the_same_and_empty_experts_stay_zero() -> None:
    layer, x = build(config("shared", normalise=True, scale=1.0)), tokens(33)
    layer.expert_bias.copy_(torch.tensor([0, -1e3, 0, 0, -1e3, 0, 0, -1e3]))
    fp8 = twin(layer, **WHICH["both"])
    for one, other in zip(layer.router(x, layer.expert_bias), fp8.router(x, fp8.expert_bias), strict=True):
        assert torch.equal(one, other)
    out = fp8(x)
    found = gradients(fp8, out, x, torch.randn_like(out))
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    busy = found["experts.w2"].flatten(1).any(dim=1)
    assert busy.tolist() == [True, False, True, True, False, True, True, False]
    assert torch.equal(
        fp8.tokens_per_expert, layer.router(x, layer.expert_bias).ids.flatten().bincount(minlength=8).float()
    )


def test_gpt_oss_in_fp8() -> None:
    layer, x = build(config("gpt-oss", limit=7.0)), tokens(40)
    assert 20 < sqnr_db(layer(x), twin(layer, precision="fp8")(x)) < 40


def test_the_switch_can_be_turned_at_any_time() -> None:
    layer, x = build(config()), tokens(24)
    bf16 = layer(x)
    layer.experts.precision = "fp8"
    fp8 = layer(x)
    assert torch.equal(fp8, twin(layer, precision="fp8")(x))
    assert not torch.equal(fp8, bf16)
    layer.experts.precision = "bf16"
    assert torch.equal(layer(x), bf16)
