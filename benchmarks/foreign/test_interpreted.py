"""Kernels of fla-core, conch and Liger, forward and backward, in Triton's interpreter: nobody here wrote them.

Copied into a repository of their own, on a machine without a GPU:

    pip install --no-deps fla-core==0.6.0 einops conch-triton-kernels==1.3 liger-kernel==0.8.5
    pytest --perfguard --perfguard-lane=cpu
"""

import importlib

import pytest
import torch
import torch.nn.functional as F

BF, F32 = torch.bfloat16, torch.float32


def rand(*shape, dtype=BF, grad=True):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def itself(function):
    return function


def applied(*rest):
    """A call of an `autograd.Function` of Liger's, with what it takes behind the tensors."""
    return lambda function: lambda *tensors: function.apply(*tensors, *rest)


def normed(eps, norm=F.rms_norm):
    return lambda x, *weights: norm(x, x.shape[-1:], *weights, eps)


def halves(x):
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def retention(q, k, v):
    decay = 1 - torch.exp2(-5 - torch.arange(q.shape[2], dtype=q.dtype))
    at = torch.arange(q.shape[1], dtype=q.dtype)
    mask = decay[:, None, None].pow((at[:, None] - at[None, :]).clamp(min=0)).tril()
    scores = torch.einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5 * mask
    return torch.einsum("bhts,bshv->bthv", scores, v)


def linear_attention(q, k, v):
    scores = (torch.einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5).tril()
    return torch.einsum("bhts,bshv->bthv", scores, v)


def causal_attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def three_of_heads(dtype=F32):
    return tuple(rand(1, 128, 2, 32, dtype=dtype) for _ in range(3))


def sparsemax(x):
    z, _ = x.sort(-1, descending=True)
    k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    total = z.cumsum(-1)
    count = (1 + k * z > total).sum(-1, keepdim=True)
    return (x - (total.gather(-1, count - 1) - 1) / count).clamp(min=0)


def rotated(q, k, cos, sin):
    def turned(x):
        left, right = halves(x)
        return x * cos[:, None] + torch.cat((-right, left), -1) * sin[:, None]

    return turned(q), turned(k)


def to_rotate():
    angle = torch.rand(1, 24, 16).mul(6).repeat(1, 1, 2)
    return rand(1, 4, 24, 32, dtype=F32), rand(1, 2, 24, 32, dtype=F32), angle.cos(), angle.sin()


def classified():
    return rand(24, 160, dtype=F32), torch.randint(0, 160, (24,))


def probabilities(*shape, grad=False):
    return torch.softmax(torch.randn(shape), -1).requires_grad_(grad)


# Module and name of a function, how it is called, its arguments, what torch gives, and further options of the fixture.
NORM, ACTIVATIONS, CONCH = "fla.modules.norm", "fla.modules.activations", "conch.ops"
FUNCTIONS = {
    "fla_rms_norm": (
        f"{NORM}.layernorm.rms_norm", lambda f: lambda x, w: f(x, w, None), lambda: (rand(48, 96), rand(96)),
        normed(1e-5),
    ),
    "fla_layer_norm": (
        f"{NORM}.layernorm.layer_norm", itself, lambda: (rand(48, 96), rand(96), rand(96)), normed(1e-5, F.layer_norm)
    ),
    "fla_rms_norm_gated": (
        f"{NORM}.fused_norm_gate.rms_norm_gated", lambda f: lambda x, g, w: f(x, g, w, None),
        lambda: (rand(48, 64), rand(48, 64), rand(64)), lambda x, g, w: normed(1e-6)(x, w) * F.silu(g),
    ),
    "fla_l2norm": (
        f"{NORM}.l2norm.l2norm", itself, lambda: (rand(48, 64),),
        lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6),
    ),
    "fla_swiglu": (
        f"{ACTIVATIONS}.swiglu", itself, lambda: (rand(24, 96), rand(24, 96)), lambda x, y: F.silu(x) * y
    ),
    "fla_logsigmoid": (f"{ACTIVATIONS}.logsigmoid", itself, lambda: (rand(24, 96),), F.logsigmoid),
    "fla_cross_entropy": (
        "fla.modules.fused_cross_entropy.cross_entropy_loss", lambda f: lambda x, labels: f(x, labels)[0], classified,
        lambda x, labels: F.cross_entropy(x, labels, reduction="none"),
    ),
    "fla_cumsum": (
        "fla.ops.utils.cumsum.chunk_global_cumsum", itself, lambda: (rand(2, 48, 4, dtype=F32, grad=False),),
        lambda x: x.cumsum(1),
    ),
    "fla_retention": (
        "fla.ops.retention.chunk_retention", lambda f: lambda q, k, v: f(q, k, v)[0], three_of_heads, retention
    ),
    "fla_linear_attention": (
        "fla.ops.linear_attn.chunk_linear_attn", lambda f: lambda q, k, v: f(q, k, v, normalize=False)[0],
        three_of_heads, linear_attention,
    ),
    "fla_parallel_attention": (
        "fla.ops.attn.parallel.parallel_attn", itself, lambda: three_of_heads(BF), causal_attention
    ),
    "conch_rms_norm": (
        f"{CONCH}.normalization.rms_norm.rms_norm", lambda f: lambda x, w: f(x, w, 1e-6),
        lambda: (rand(24, 96, grad=False), rand(96, grad=False)), normed(1e-6),
    ),
    "conch_silu_and_mul": (
        f"{CONCH}.activation.silu_and_mul.silu_and_mul", itself, lambda: (rand(24, 192, grad=False),),
        lambda x: F.silu(halves(x)[0]) * halves(x)[1],
    ),
    "conch_gelu_tanh_and_mul": (
        f"{CONCH}.activation.gelu_tanh_and_mul.gelu_tanh_and_mul", itself, lambda: (rand(24, 192, grad=False),),
        lambda x: F.gelu(halves(x)[0], approximate="tanh") * halves(x)[1],
    ),
    "liger_rms_norm": (
        "rms_norm.LigerRMSNormFunction", applied(1e-6, 0.0, "llama", False),
        lambda: (rand(24, 96, dtype=F32), rand(96, dtype=F32)), normed(1e-6),
    ),
    "liger_layer_norm": (
        "layer_norm.LigerLayerNormFunction", applied(1e-6), lambda: (rand(24, 96), rand(96), rand(96)),
        normed(1e-6, F.layer_norm),
    ),
    "liger_group_norm": (
        "group_norm.LigerGroupNormFunction", applied(12, 4, 1e-6),
        lambda: (rand(4, 12, 32, dtype=F32), rand(12, dtype=F32), rand(12, dtype=F32)),
        lambda x, w, b: F.group_norm(x, 4, w, b, 1e-6),
    ),
    "liger_swiglu": (
        "swiglu.LigerSiLUMulFunction", applied(), lambda: (rand(24, 96), rand(24, 96)), lambda a, b: F.silu(a) * b,
        {"clobbers": (0, 1)},
    ),
    "liger_geglu": (
        "geglu.LigerGELUMulFunction", applied(), lambda: (rand(24, 96), rand(24, 96)),
        lambda a, b: F.gelu(a, approximate="tanh") * b, {"clobbers": (0, 1)},
    ),
    "liger_softmax": (
        "softmax.LigerSoftmaxFunction", applied(), lambda: (rand(24, 100, dtype=F32),), lambda x: torch.softmax(x, -1)
    ),
    "liger_sparsemax": (
        "sparsemax.LigerSparsemaxFunction", applied(-1), lambda: (rand(24, 40, dtype=F32),), sparsemax
    ),
    "liger_relu_squared": (
        "relu_squared.LigerReLUSquaredFunction", applied(), lambda: (rand(24, 96),), lambda x: F.relu(x).square()
    ),
    "liger_dyt": (
        "dyt.LigerDyTFunction", applied(),
        lambda: (rand(24, 96, dtype=F32), torch.ones(1).requires_grad_(), rand(96, dtype=F32), rand(96, dtype=F32)),
        lambda x, a, g, b: g * torch.tanh(a * x) + b,
    ),
    "liger_rope": ("rope.LigerRopeFunction", applied(), to_rotate, rotated),
    "liger_cross_entropy": (
        "cross_entropy.LigerCrossEntropyFunction", lambda f: lambda x, labels: f.apply(x.clone(), labels, None)[0],
        classified, lambda x, labels: F.cross_entropy(x, labels),
    ),
    "liger_kl_div": (
        "kl_div.LigerKLDivLossFunction", lambda f: lambda x, y: f.apply(torch.log_softmax(x, -1), y, "batchmean"),
        lambda: (rand(24, 96, dtype=F32), probabilities(24, 96)),
        lambda x, y: F.kl_div(torch.log_softmax(x, -1), y, reduction="batchmean"),
    ),
    "liger_tvd": (
        "tvd.LigerTVDLossFunction", applied(None, "batchmean"),
        lambda: (probabilities(24, 96, grad=True), probabilities(24, 96)),
        lambda p, q: 0.5 * (p - q).abs().sum() / p.shape[0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(perfguard, name):
    """The function of a package that is there. It is imported by the test, once perfguard has set up Triton."""
    place, call, arguments, reference, *more = FUNCTIONS[name]
    module, _, function = f"liger_kernel.ops.{place}".rpartition(".") if "liger" in name else place.rpartition(".")
    pytest.importorskip(module.partition(".")[0])
    made = call(getattr(importlib.import_module(module), function))
    perfguard(made, *arguments(), reference=reference, **dict(*more))
