"""What an MoE layer is: widths, experts, and how tokens choose among them. One frozen record, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels.arguments import require_positive

Score = Literal["softmax", "sigmoid"]
SCORES: tuple[Score, ...] = ("softmax", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """One MoE layer.

    Attributes:
        dim: width D of the model.
        hidden: width F of one expert.
        experts: routed experts E.
        top_k: experts that a token goes to.
        shared: shared experts; they are one SwiGLU of width `hidden * shared` on all tokens.
        score: how logits become scores, over all experts.
        groups, kept_groups: experts lie in so many equal groups; a token chooses within its best `kept_groups`.
        normalise: whether a token's weights are divided by their sum.
        scale: the factor of all weights, after that.
        gate_bias: whether the gate has a bias that is trained (`expert_bias` is another thing: it balances).
        weight_before: the weight multiplies the expert's input (llama4) instead of its output.
        balanced: tokens go round the experts whatever their scores say: timings that do not depend on weights.
        clamped: gpt-oss's experts: interleaved gate and up, biases, clamped SwiGLU.
        alpha, limit: of the clamped SwiGLU.
    """

    dim: int
    hidden: int
    experts: int
    top_k: int
    shared: int = 0
    score: Score = "softmax"
    groups: int = 1
    kept_groups: int = 1
    normalise: bool = False
    scale: float = 1.0
    gate_bias: bool = False
    weight_before: bool = False
    balanced: bool = False
    clamped: bool = False
    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        for name in ("dim", "hidden", "experts", "groups"):
            require_positive(getattr(self, name), name)
        require_positive(self.shared, "shared", least=0)
        if self.score not in SCORES:
            raise ValueError(f"score: is {self.score!r}; may be one of {', '.join(SCORES)}")
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k: is {self.top_k}; may be 1 to {self.experts}, the number of experts")
        self._check_groups()

    def _check_groups(self) -> None:
        if not 1 <= self.kept_groups <= self.groups:
            raise ValueError(f"kept_groups: is {self.kept_groups}; may be 1 to {self.groups}, the number of groups")
        if self.groups == 1:
            return
        size, rest = divmod(self.experts, self.groups)
        if rest or size < 2:  # a group's score is the sum of its two best
            raise ValueError(
                f"groups: is {self.groups} for {self.experts} experts; may be a divisor of {self.experts} "
                "that leaves at least 2 experts a group"
            )
        if self.top_k > self.kept_groups * size:
            raise ValueError(
                f"top_k: is {self.top_k}; may be {self.kept_groups * size} at most, the experts of the "
                f"{self.kept_groups} groups that a token keeps"
            )
