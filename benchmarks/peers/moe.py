"""The MoE layer against the same layer of plain torch operators around `torch._grouped_mm`.

The peer is written as torchtitan's layer is: sort the choices, index, three grouped matmuls, silu and product, weights
in float32, `scatter_add`; autograd keeps what each step needs. Weights, routing and precision are the layer's own.

Shape suffixes: T tokens, D model width, E experts, K experts a token, M = T · K rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers import torchao
from benchmarks.peers.contest import Call, Contest
from kernels.moe import MoE
from kernels.moe.experts import SwiGLUExperts
from kernels.moe.reference import route
from kernels.moe.shapes import LayerShape

SHAPES = (LayerShape("qwen3-30b-a3b", 8192), LayerShape("deepseek-16b", 8192))
SMOKE = (LayerShape("dsv3-debug", 32),)
STEPS = tuple(LayerShape("qwen3-30b-a3b", tokens) for tokens in (2048, 8192, 32768))

Product = Callable[..., Tensor]  # rows (M, K) by weights (E, K, N), with offs=


def contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    for shape in SMOKE if smoke else SHAPES:
        layer = shape.layer(device).eval()
        x = shape.inputs(device).requires_grad_()
        grad = torch.randn_like(x)
        layers: dict[str, Callable[[Tensor], Tensor]] = {
            "ours": layer,
            "ours, all kept": _changed(layer, recompute=False),
            "torch operators": partial(plain, layer),
        }
        yield Contest("moe forward", str(shape), {name: partial(_run, run, x) for name, run in layers.items()}, 0.02)
        trained: dict[str, Call] = {name: partial(_train, run, layer, x, grad) for name, run in layers.items()}
        yield Contest("moe forward + backward", str(shape), trained, tolerance=0.03, flop=3 * shape.flop)
        fp8 = _changed(layer, precision="fp8")
        trained = {
            "ours": partial(_train, layer, layer, x, grad),
            "ours, fp8 experts": partial(_train, fp8, fp8, x, grad),
        }
        yield Contest("moe forward + backward", f"{shape}-fp8", trained, tolerance=0.2, flop=3 * shape.flop)


def step_contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    """One training step of the layer by the clock, in bf16 and in fp8: ours beside torch's and torchao's operators."""
    for shape in SMOKE if smoke else STEPS:
        layer = shape.layer(device).eval()
        x = shape.inputs(device).requires_grad_()
        grad = torch.randn_like(x)

        def step(run: Callable[[Tensor], Tensor], layer: MoE = layer, x: Tensor = x, grad: Tensor = grad) -> Call:
            return partial(_train, run, layer, x, grad)

        rivals = {"ours": step(layer), "torch operators": step(partial(plain, layer))}
        yield Contest("moe step", str(shape), rivals, tolerance=0.03, flop=3 * shape.flop, waits=True)
        fp8 = _changed(layer, precision="fp8")
        rivals = {"ours, fp8 experts": partial(_train, fp8, fp8, x, grad)}
        theirs = torchao.matmul(device)
        if theirs is not None:
            rivals["torchao operators"] = step(partial(plain, layer, product=theirs))
        yield Contest("moe step", f"{shape}-fp8", rivals, tolerance=0.2, flop=3 * shape.flop, waits=True)


def _changed(layer: MoE, *, precision: str | None = None, recompute: bool | None = None) -> MoE:
    """Another layer on the same parameters."""
    other = MoE(layer.config, precision=precision or "bf16", device="meta", dtype=torch.bfloat16)
    other.load_state_dict(layer.state_dict(keep_vars=True), assign=True)
    other.recompute = layer.recompute if recompute is None else recompute
    return other.eval()


def _run(layer: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [layer(x)]


def _train(run: Callable[[Tensor], Tensor], layer: MoE, x: Tensor, grad: Tensor) -> list[Tensor]:
    out = run(x)
    return [out.detach(), *torch.autograd.grad(out, [x, *layer.parameters()], grad)]


def plain(layer: MoE, x_TD: Tensor, product: Product = torch._grouped_mm) -> Tensor:
    """What `layer(x)` returns, with another grouped `product`."""
    experts, config = layer.experts, layer.config
    assert isinstance(experts, SwiGLUExperts)
    assert not config.weight_before
    weights_TK, ids_TK, _ = route(layer.router, x_TD, layer.expert_bias)
    expert_M, order_M = ids_TK.flatten().sort(stable=True)
    token_M = order_M // config.top_k
    offs_E = torch.searchsorted(expert_M, torch.arange(config.experts, device=x_TD.device), right=True).int()
    rows_MD = x_TD[token_M]
    gate_MF = product(rows_MD, experts.w1.mT, offs=offs_E)
    hidden_MF = F.silu(gate_MF) * product(rows_MD, experts.w3.mT, offs=offs_E)
    y_MD = product(hidden_MF, experts.w2.mT, offs=offs_E)
    y_MD = (y_MD.float() * weights_TK.flatten()[order_M].unsqueeze(-1)).to(x_TD.dtype)
    out_TD = torch.zeros_like(x_TD).scatter_add(0, token_M.unsqueeze(-1).expand_as(y_MD), y_MD)
    if layer.shared is None:
        return out_TD
    shared = layer.shared
    return out_TD + F.linear(F.silu(F.linear(x_TD, shared.w1)) * F.linear(x_TD, shared.w3), shared.w2)
