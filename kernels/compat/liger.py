"""Cross entropy, alone and of a linear layer, SwiGLU, RMSNorm and RoPE by Liger's names, those of liger-kernel 0.8.5.

The functions are those of `liger_kernel.transformers.functional`, the classes whose `apply` is called those of
`liger_kernel.ops`, and the modules those of `liger_kernel.transformers`. Positional order, defaults and meaning are
Liger's. What differs:

- every function runs without a GPU, too, by torch operators, and the host waits for no number of the device;
- losses are float32, also those of bf16 logits, and a target out of range on a GPU is NaN instead of an assertion;
- logits that get a gradient are overwritten by it, as Liger does, but autograd is told: whoever saved them for a
  backward pass of its own gets an error and no wrong gradient. Logits whose elements share memory stay as they are, and
  a loss is compiled in one graph with what makes its logits;
- the weight's gradient of the linear layer is always summed in float32, and chunks of rows have a size of their own:
  `accum_dtype`, `chunk_mem_const`, `ce_impl` and `ce_mode` change nothing. Nor does `in_place` of the fused gate;
- predicted tokens, and with them the accuracy, are a pass of their own over the logits, which the linear layer computes
  once more for it, in chunks of rows;
- RMSNorm rounds once, in each of Liger's casting modes: "gemma" is that rounding, "llama" rounds what is normed and the
  product, "none" every step. Neither RMSNorm nor RoPE writes into its inputs: `in_place` and `row_mode` change nothing;
- token scaling is refused by name: multiply losses of the reduction "none".

Shapes: N rows (Liger's BT), K input columns (H), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import operators
from kernels.operators.cross_entropy import owns_memory
from kernels.operators.linear_cross_entropy import LEAST_ROWS

Four = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


@dataclass
class CrossEntropyOutput:
    """What the functions and modules return where more than the loss is asked for."""

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


@torch.no_grad()
def _predictions(
    chunks: Iterable[Tensor], target: Tensor, ignore_index: int, reduction: str, accuracy: bool, predicted: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Accuracy, of all kept rows or of each, and predicted tokens, -1 in ignored rows; None where not asked for.

    `chunks` are logits, computed as they are needed.
    """
    if not (accuracy or predicted):
        return None, None
    kept = target != ignore_index
    token = torch.cat([logits.argmax(1) for logits in chunks]).where(kept, -1)
    right = ((token == target) & kept).float()
    share = right if reduction == "none" else right.sum() / kept.sum()
    return share if accuracy else None, token if predicted else None


def _four(result: Tensor | tuple[Tensor, Tensor], predictions: tuple[Tensor | None, Tensor | None]) -> Four:
    return *(result if isinstance(result, tuple) else (result, None)), *predictions


def _of_user(four: Four) -> Tensor | CrossEntropyOutput:
    return four[0] if all(each is None for each in four[1:]) else CrossEntropyOutput(*four)


# ---- liger_kernel.ops ----------------------------------------------------------------------------------------------


class LigerCrossEntropyFunction:
    """Of logits (N, V) and targets (N,)."""

    @staticmethod
    def apply(
        _input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> Four:
        """-> loss, and z-loss, token accuracy and predicted tokens or None."""
        asked = return_token_accuracy, return_predicted_tokens
        predictions = _predictions([_input], target, ignore_index, reduction, *asked)  # before it is overwritten
        found = operators.cross_entropy(
            _input, target, ignore_index, reduction, inplace=owns_memory(_input),  # Liger's may be an expanded tensor
            weight=weight, label_smoothing=label_smoothing, softcap=softcap, lse_square_scale=lse_square_scale,
            return_z_loss=return_z_loss,
        )  # fmt: skip
        return _four(found, predictions)


class LigerFusedLinearCrossEntropyFunction:
    """Of rows (N, K), a layer's weight (V, K) and bias (V,), and targets (N,)."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
        ce_impl: str | None = None,
        ce_mode: str | None = None,
        chunk_mem_const: int = 1,
    ) -> Four:
        """-> loss, and z-loss, token accuracy and predicted tokens or None."""
        if use_token_scaling:
            raise ValueError("use_token_scaling: is True; may be False: multiply losses of reduction='none' instead")
        chunks = (F.linear(rows, weight, bias) for rows in _input.split(LEAST_ROWS))
        asked = return_token_accuracy, return_predicted_tokens
        predictions = _predictions(chunks, target, ignore_index, reduction, *asked)
        found = operators.linear_cross_entropy(
            _input, weight, target, linear_bias=bias, weight=ce_weight, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing, softcap=softcap, lse_square_scale=lse_square_scale,
            return_z_loss=return_z_loss,
        )  # fmt: skip
        return _four(found, predictions)


class LigerSiLUMulFunction:
    """Of gate and up (...)."""

    @staticmethod
    def apply(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
        """-> down_multiplier * silu(gate_multiplier * a) * b."""
        product = operators.silu_mul(a if gate_multiplier == 1 else a * gate_multiplier, b)
        return product if down_multiplier == 1 else product * down_multiplier


class LigerFusedGateUpSiLUMulFunction:
    """Of gate and up side by side (..., 2 F)."""

    @staticmethod
    def apply(y: Tensor, in_place: bool = False) -> Tensor:
        """-> silu(gate) * up (..., F)."""
        return operators.silu_mul(*y.chunk(2, -1))


class LigerRMSNormFunction:
    """Of x (..., H) and a weight (H,)."""

    @staticmethod
    def apply(
        X: Tensor,
        W: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> Tensor:
        """-> x / sqrt(mean(x^2) + eps) * (offset + weight)."""
        return operators.rms_norm(X, W, eps, offset=offset)


class LigerRopeFunction:
    """Of queries and keys (B, H, S, D), and cos and sin (1 or B, S, R) or (S, R), of which the first half counts."""

    @staticmethod
    def apply(
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor | None = None,
        unsqueeze_dim: int = 1,
        rotary_dim: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """-> both turned, with halves of R columns as pairs. `position_ids` change nothing, as in Liger."""
        if cos.ndim == 4:
            cos, sin = (each.squeeze(unsqueeze_dim) for each in (cos, sin))
        pairs = (min(cos.shape[-1], q.shape[-1]) if rotary_dim is None else rotary_dim) // 2
        table = torch.stack((cos[..., :pairs], sin[..., :pairs]), -1).detach()
        if table.ndim == 4 and table.shape[0] == 1:
            table = table[0]
        turned = (operators.rope(each.transpose(1, 2), table, interleaved=False).transpose(1, 2) for each in (q, k))
        return next(turned), next(turned)


# ---- liger_kernel.transformers -------------------------------------------------------------------------------------


def liger_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """Of logits (N, V). `size_average` and `reduce` change nothing, as in Liger."""
    return _of_user(
        LigerCrossEntropyFunction.apply(
            input, target, weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap,
            return_z_loss, return_token_accuracy, return_predicted_tokens,
        )
    )  # fmt: skip


def liger_fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    chunk_mem_const: int = 1,
) -> Tensor | CrossEntropyOutput:
    """Of rows (N, K), a layer's weight (V, K) and bias (V,)."""
    return _of_user(
        LigerFusedLinearCrossEntropyFunction.apply(
            input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap,
            return_z_loss, accum_dtype, use_token_scaling, return_token_accuracy, return_predicted_tokens,
        )
    )  # fmt: skip


def liger_swiglu(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) * b."""
    return operators.silu_mul(a, b)


def liger_rms_norm(
    X: Tensor,
    W: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> Tensor:
    """`LigerRMSNormFunction`."""
    return LigerRMSNormFunction.apply(X, W, eps, offset, casting_mode, in_place)


liger_rope = LigerRopeFunction.apply


class LigerCrossEntropyLoss(nn.Module):
    """`liger_cross_entropy` with these options."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.weight, self.ignore_index, self.lse_square_scale = weight, ignore_index, lse_square_scale
        self.label_smoothing, self.reduction, self.softcap = label_smoothing, reduction, softcap
        self.return_z_loss = return_z_loss
        self.return_token_accuracy, self.return_predicted_tokens = return_token_accuracy, return_predicted_tokens

    def forward(self, _input: Tensor, target: Tensor) -> Tensor | CrossEntropyOutput:
        return liger_cross_entropy(
            _input, target, self.weight, None, self.ignore_index, None, self.reduction, self.label_smoothing,
            self.lse_square_scale, self.softcap, self.return_z_loss, self.return_token_accuracy,
            self.return_predicted_tokens,
        )  # fmt: skip


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    """`liger_fused_linear_cross_entropy` with these options."""

    def __init__(
        self,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.ce_weight, self.ignore_index, self.lse_square_scale = ce_weight, ignore_index, lse_square_scale
        self.label_smoothing, self.reduction, self.softcap = label_smoothing, reduction, softcap
        self.return_z_loss, self.accum_dtype, self.use_token_scaling = return_z_loss, accum_dtype, use_token_scaling
        self.return_token_accuracy, self.return_predicted_tokens = return_token_accuracy, return_predicted_tokens

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor | CrossEntropyOutput:
        return liger_fused_linear_cross_entropy(
            _input, lin_weight, target, bias, self.ce_weight, self.ignore_index, self.lse_square_scale,
            self.label_smoothing, self.reduction, self.softcap, self.return_z_loss, self.accum_dtype,
            self.use_token_scaling, self.return_token_accuracy, self.return_predicted_tokens,
        )  # fmt: skip


class LigerRMSNorm(nn.Module):
    """`liger_rms_norm` with a weight of its own, or none."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        if init_fn not in ("ones", "zeros"):
            raise ValueError(f"init_fn: is {init_fn!r}; may be 'ones' or 'zeros'")
        weight = torch.full((hidden_size,), float(init_fn == "ones"))
        self.register_parameter("weight", nn.Parameter(weight) if elementwise_affine else None)
        self.variance_epsilon, self.offset = eps, offset

    def forward(self, hidden_states: Tensor) -> Tensor:
        return LigerRMSNormFunction.apply(hidden_states, self.weight, self.variance_epsilon, self.offset)
