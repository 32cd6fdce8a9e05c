"""Models of two small blocks for several ranks, and the meshes that they lie on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from kernels.layers import BlockConfig, MoEBlock, Transformer
from kernels.moe import MoEConfig
from kernels.moe.shapes import set_load
from kernels.parallel.model import parallelize

VOCAB, TOKENS = 50, 12
ONE_MESH = torch.__version__ < "2.12"  # for all parameters of a module
NO_OWN_MESH = "experts on a mesh of their own need torch 2.12 or later"
on_own_mesh = pytest.mark.skipif(ONE_MESH, reason=NO_OWN_MESH)
MOE = MoEConfig(dim=32, hidden=16, experts=4, top_k=2, shared=1)
BLOCKS = {
    "dense": BlockConfig(dim=32, heads=4, kv_heads=2, hidden=48),
    "moe": BlockConfig(dim=32, heads=4, kv_heads=2, moe=MOE),
}
# Widths and tokens whose exchanges take milliseconds on GPUs: 8 MB and more each.
LARGE_TOKENS = 2048
LARGE_MOE = MoEConfig(dim=2048, hidden=1408, experts=8, top_k=2, shared=1)
LARGE = {
    "dense": BlockConfig(dim=2048, heads=16, kv_heads=4, hidden=5632),
    "moe": BlockConfig(dim=2048, heads=16, kv_heads=4, moe=LARGE_MOE),
}
Load = Literal["balanced", "learned", "hot"]


def _set_loop(model: Transformer, loop: bool) -> None:
    for layer in model.layers:
        (layer.moe if isinstance(layer, MoEBlock) else layer).loop = loop


def _loop_in_float64(model: Transformer, _: Any) -> None:
    """What is eager in float8 rounds to float8: experts one by one would be as exact as bfloat16."""
    _set_loop(model, model.head.weight.dtype == torch.float64)


@dataclass(frozen=True)
class Sharded:
    """Two blocks on a mesh.

    Attributes:
        mesh: dimension -> ranks, in order.
        load: "balanced": tokens go round the experts; "learned": as the scores say; "hot": all to the first two.
        experts: over "tp" as well.
        tokens: of each of two sequences a rank. More than TOKENS stand for widths of real blocks, for times on GPUs.
        precision: of the feed-forward's products: "bf16" or "fp8".
    """

    kind: Literal["dense", "moe"]
    mesh: tuple[tuple[str, int], ...]
    load: Load = "balanced"
    experts: bool = False
    tokens: int = TOKENS
    precision: str = "bf16"

    @property
    def large(self) -> bool:
        return self.tokens > TOKENS

    @property
    def config(self) -> BlockConfig:
        config = (LARGE if self.large else BLOCKS)[self.kind]
        if config.moe is None:
            return config
        return dataclasses.replace(config, moe=dataclasses.replace(config.moe, balanced=self.load == "balanced"))

    def whole(self, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Transformer:
        """On one rank, in its own dtype throughout: experts one by one. The same on all ranks."""
        torch.manual_seed(0)
        model = Transformer(
            [self.config] * 2,
            VOCAB,
            positions=self.tokens,
            precision=self.precision,
            loop=True,
            device=device,
            dtype=dtype,
        ).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1 and not self.large:  # as drawn, blocks hardly change their input
                    weight.mul_(6)
        if self.load == "hot":
            for layer in model.layers:
                assert isinstance(layer, MoEBlock)
                set_load(layer.moe, "hot")
        if self.precision != "bf16":
            model.register_forward_pre_hook(_loop_in_float64)
        return model

    def spread(
        self, whole: Transformer, mesh: DeviceMesh, backend: str | Callable[..., Any] | None = None, **options: Any
    ) -> Transformer:
        """A copy of `whole` on `mesh`, experts together: these multiply in bfloat16, whatever the dtype of `whole`."""
        model = copy.deepcopy(whole)
        _set_loop(model, False)
        parallelize(model, mesh, backend=backend, expert_tensors=self.experts, **options)
        return model

    def ids(self, rank: int, device: torch.device) -> Tensor:
        """Of one data-parallel place; ranks of "tp" have the same."""
        place = rank // dict(self.mesh).get("tp", 1)
        return torch.randint(VOCAB, (2, self.tokens), generator=torch.Generator().manual_seed(place)).to(device)

    def __str__(self) -> str:
        names = "-".join(f"{name}{size}" for name, size in self.mesh)
        load = f"-{self.load}" if self.kind == "moe" else ""
        named = {"experts": self.experts, "large": self.large, "fp8": self.precision == "fp8"}
        tokens = f"-{self.tokens}" if self.large and self.tokens != LARGE_TOKENS else ""
        return f"{self.kind}-{names}{load}{''.join(f'-{name}' for name, so in named.items() if so)}{tokens}"


def guard(perfguard: Any, shape: Sharded, backend: str | None = None, *, timed: bool) -> None:
    """Guard a step of `shape` on its mesh, compiled by `backend`, against the whole model's."""
    if ONE_MESH and dict(shape.mesh).get("efsdp", 1) > 1:
        perfguard.unsupported(NO_OWN_MESH)
    mesh = perfguard.mesh(**dict(shape.mesh))
    whole = shape.whole(perfguard.device)
    model = shape.spread(whole, mesh, backend)
    perfguard(model, shape.ids(perfguard.rank, perfguard.device), reference=whole, timed=timed)
