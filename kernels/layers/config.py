"""What a transformer block is: its attention, and which feed-forward follows. One frozen record, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.arguments import require_positive
from kernels.moe import MoEConfig


@dataclass(frozen=True)
class LatentAttention:
    """Widths of multi-head latent attention, the same in the whole DeepSeek family."""

    kv_lora: int = 512
    nope: int = 128
    rope: int = 64
    v: int = 128

    def __post_init__(self) -> None:
        for name in ("kv_lora", "nope", "rope", "v"):
            require_positive(getattr(self, name), name)
        if self.rope % 2:
            raise ValueError(f"rope: is {self.rope}; may be even: positions turn pairs")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One block: attention, then a dense SwiGLU or an MoE layer.

    Attributes:
        dim: width D of the model.
        heads: query heads H.
        kv_heads: key and value heads; heads is a multiple of them. Latent attention has none of its own.
        head_dim: columns of a head; by default dim / heads. Latent attention has widths of its own.
        latent: latent attention instead of grouped queries.
        hidden: width F of the dense SwiGLU; unused where `moe` is given.
        moe: the MoE layer; None for a dense block.
        eps: of the norms.
    """

    dim: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    latent: LatentAttention | None = None
    hidden: int = 0
    moe: MoEConfig | None = None
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("dim", "heads"):
            require_positive(getattr(self, name), name)
        if self.moe is None and self.hidden < 1:
            raise ValueError(f"hidden: is {self.hidden}; may be 1 or more in a block without `moe`")
        if self.moe is not None and self.moe.dim != self.dim:
            raise ValueError(f"moe: is {self.moe.dim} wide; may be {self.dim}, the width of the block")
        if self.latent is None:
            self._check_heads()

    def _check_heads(self) -> None:
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(f"heads: is {self.heads} for {self.dim} columns; may divide them, or give `head_dim`")
        if self.width < 2 or self.width % 2:
            raise ValueError(f"head_dim: is {self.width}; may be even and 2 or more: positions turn pairs")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads: is {self.kv_heads}; may be a divisor of {self.heads}, the number of heads")

    @property
    def width(self) -> int:
        """Columns of a head, where attention is not latent."""
        return self.head_dim or self.dim // self.heads

    @property
    def rotated(self) -> int:
        """Columns of a head that positions turn."""
        return self.width if self.latent is None else self.latent.rope
