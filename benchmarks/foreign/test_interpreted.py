"""Kernels of fla-core, conch and Liger, forward and backward, in Triton's interpreter: nobody here wrote them.

Copied into a repository of their own, on a machine without a GPU:

    pip install --no-deps fla-core==0.6.0 einops conch-triton-kernels==1.3 liger-kernel==0.8.5
    pytest --perfguard --perfguard-lane=cpu
"""

import importlib

import pytest
import torch
import torch.nn.functional as F

BF = torch.bfloat16


def of(module, name):
    """A function of a package that is there. It is imported by the test, once perfguard has set up Triton."""
    pytest.importorskip(module.partition(".")[0])
    return getattr(importlib.import_module(module), name)


def rand(*shape, dtype=BF, grad=True):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def autograd(function, *rest):
    """A call of an `autograd.Function` of Liger's, with what it takes behind the tensors."""
    return lambda *tensors: function.apply(*tensors, *rest)


def test_fla_rms_norm(perfguard):
    rms_norm = of("fla.modules.norm.layernorm", "rms_norm")
    x, w = rand(48, 96), rand(96)
    perfguard(lambda x, w: rms_norm(x, w, None), x, w, reference=lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5))


def test_fla_layer_norm(perfguard):
    layer_norm = of("fla.modules.norm.layernorm", "layer_norm")
    perfguard(
        layer_norm, rand(48, 96), rand(96), rand(96),
        reference=lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-5),
    )  # fmt: skip


def test_fla_rms_norm_gated(perfguard):
    gated = of("fla.modules.norm.fused_norm_gate", "rms_norm_gated")
    perfguard(
        lambda x, g, w: gated(x, g, w, None), rand(48, 64), rand(48, 64), rand(64),
        reference=lambda x, g, w: F.rms_norm(x, x.shape[-1:], w, 1e-6) * F.silu(g),
    )  # fmt: skip


def test_fla_l2norm(perfguard):
    l2norm = of("fla.modules.norm.l2norm", "l2norm")
    perfguard(l2norm, rand(48, 64), reference=lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6))


def test_fla_swiglu(perfguard):
    perfguard(of("fla.modules.activations", "swiglu"), rand(24, 96), rand(24, 96), reference=lambda x, y: F.silu(x) * y)


def test_fla_logsigmoid(perfguard):
    perfguard(of("fla.modules.activations", "logsigmoid"), rand(24, 96), reference=F.logsigmoid)


def test_fla_cross_entropy(perfguard):
    loss = of("fla.modules.fused_cross_entropy", "cross_entropy_loss")
    labels = torch.randint(0, 160, (24,))
    perfguard(
        lambda x, labels: loss(x, labels)[0], rand(24, 160, dtype=torch.float32), labels,
        reference=lambda x, labels: F.cross_entropy(x, labels, reduction="none"),
    )  # fmt: skip


def test_fla_cumsum(perfguard):
    cumsum = of("fla.ops.utils.cumsum", "chunk_global_cumsum")
    perfguard(cumsum, rand(2, 48, 4, dtype=torch.float32, grad=False), reference=lambda x: x.cumsum(1))


def retention(q, k, v):
    decay = 1 - torch.exp2(-5 - torch.arange(q.shape[2], dtype=q.dtype))
    at = torch.arange(q.shape[1], dtype=q.dtype)
    mask = decay[:, None, None].pow((at[:, None] - at[None, :]).clamp(min=0)).tril()
    scores = torch.einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5 * mask
    return torch.einsum("bhts,bshv->bthv", scores, v)


def test_fla_retention(perfguard):
    chunk = of("fla.ops.retention", "chunk_retention")
    perfguard(
        lambda q, k, v: chunk(q, k, v)[0], *(rand(1, 128, 2, 32, dtype=torch.float32) for _ in range(3)),
        reference=retention,
    )  # fmt: skip


def linear_attention(q, k, v):
    scores = (torch.einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5).tril()
    return torch.einsum("bhts,bshv->bthv", scores, v)


def test_fla_linear_attention(perfguard):
    chunk = of("fla.ops.linear_attn", "chunk_linear_attn")
    perfguard(
        lambda q, k, v: chunk(q, k, v, normalize=False)[0],
        *(rand(1, 128, 2, 32, dtype=torch.float32) for _ in range(3)), reference=linear_attention,
    )  # fmt: skip


def test_fla_parallel_attention(perfguard):
    attend = of("fla.ops.attn.parallel", "parallel_attn")

    def reference(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    perfguard(attend, *(rand(1, 128, 2, 32) for _ in range(3)), reference=reference)


def test_conch_rms_norm(perfguard):
    rms_norm = of("conch.ops.normalization.rms_norm", "rms_norm")
    perfguard(
        lambda x, w: rms_norm(x, w, 1e-6), rand(24, 96, grad=False), rand(96, grad=False),
        reference=lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    )  # fmt: skip


def halves(x):
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def test_conch_silu_and_mul(perfguard):
    call = of("conch.ops.activation.silu_and_mul", "silu_and_mul")
    perfguard(call, rand(24, 192, grad=False), reference=lambda x: F.silu(halves(x)[0]) * halves(x)[1])


def test_conch_gelu_tanh_and_mul(perfguard):
    call = of("conch.ops.activation.gelu_tanh_and_mul", "gelu_tanh_and_mul")
    reference = lambda x: F.gelu(halves(x)[0], approximate="tanh") * halves(x)[1]  # noqa: E731
    perfguard(call, rand(24, 192, grad=False), reference=reference)


def test_liger_rms_norm(perfguard):
    function = of("liger_kernel.ops.rms_norm", "LigerRMSNormFunction")
    perfguard(
        autograd(function, 1e-6, 0.0, "llama", False), rand(24, 96, dtype=torch.float32), rand(96, dtype=torch.float32),
        reference=lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    )  # fmt: skip


def test_liger_layer_norm(perfguard):
    function = of("liger_kernel.ops.layer_norm", "LigerLayerNormFunction")
    perfguard(
        autograd(function, 1e-6), rand(24, 96), rand(96), rand(96),
        reference=lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-6),
    )  # fmt: skip


def test_liger_group_norm(perfguard):
    function = of("liger_kernel.ops.group_norm", "LigerGroupNormFunction")
    perfguard(
        lambda x, w, b: function.apply(x, w, b, 12, 4, 1e-6), rand(4, 12, 32, dtype=torch.float32),
        rand(12, dtype=torch.float32), rand(12, dtype=torch.float32),
        reference=lambda x, w, b: F.group_norm(x, 4, w, b, 1e-6),
    )  # fmt: skip


def test_liger_swiglu(perfguard):
    function = of("liger_kernel.ops.swiglu", "LigerSiLUMulFunction")
    silu_mul = autograd(function)
    perfguard(silu_mul, rand(24, 96), rand(24, 96), reference=lambda a, b: F.silu(a) * b, clobbers=(0, 1))


def test_liger_geglu(perfguard):
    function = of("liger_kernel.ops.geglu", "LigerGELUMulFunction")
    reference = lambda a, b: F.gelu(a, approximate="tanh") * b  # noqa: E731
    perfguard(autograd(function), rand(24, 96), rand(24, 96), reference=reference, clobbers=(0, 1))


def test_liger_softmax(perfguard):
    function = of("liger_kernel.ops.softmax", "LigerSoftmaxFunction")
    perfguard(autograd(function), rand(24, 100, dtype=torch.float32), reference=lambda x: torch.softmax(x, -1))


def test_liger_sparsemax(perfguard):
    function = of("liger_kernel.ops.sparsemax", "LigerSparsemaxFunction")

    def reference(x):
        z, _ = x.sort(-1, descending=True)
        k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        total = z.cumsum(-1)
        count = (1 + k * z > total).sum(-1, keepdim=True)
        return (x - (total.gather(-1, count - 1) - 1) / count).clamp(min=0)

    perfguard(autograd(function, -1), rand(24, 40, dtype=torch.float32), reference=reference)


def test_liger_relu_squared(perfguard):
    function = of("liger_kernel.ops.relu_squared", "LigerReLUSquaredFunction")
    perfguard(autograd(function), rand(24, 96), reference=lambda x: F.relu(x).square())


def test_liger_dyt(perfguard):
    function = of("liger_kernel.ops.dyt", "LigerDyTFunction")
    one = torch.ones(1, dtype=torch.float32).requires_grad_()
    perfguard(
        autograd(function), rand(24, 96, dtype=torch.float32), one, rand(96, dtype=torch.float32),
        rand(96, dtype=torch.float32), reference=lambda x, a, g, b: g * torch.tanh(a * x) + b,
    )  # fmt: skip


def test_liger_rope(perfguard):
    function = of("liger_kernel.ops.rope", "LigerRopeFunction")

    def turned(x, cos, sin):
        left, right = halves(x)
        return x * cos + torch.cat((-right, left), -1) * sin

    def both(q, k, cos, sin):
        return tuple(turned(x, cos[:, None], sin[:, None]) for x in (q, k))

    angle = torch.rand(1, 24, 16).mul(6).repeat(1, 1, 2)
    perfguard(
        function.apply, rand(1, 4, 24, 32, dtype=torch.float32), rand(1, 2, 24, 32, dtype=torch.float32),
        angle.cos(), angle.sin(), reference=both,
    )  # fmt: skip


def test_liger_cross_entropy(perfguard):
    function = of("liger_kernel.ops.cross_entropy", "LigerCrossEntropyFunction")
    labels = torch.randint(0, 160, (24,))
    perfguard(
        lambda x, labels: function.apply(x.clone(), labels, None)[0], rand(24, 160, dtype=torch.float32), labels,
        reference=lambda x, labels: F.cross_entropy(x, labels),
    )  # fmt: skip


def test_liger_kl_div(perfguard):
    function = of("liger_kernel.ops.kl_div", "LigerKLDivLossFunction")
    logits, target = rand(24, 96, dtype=torch.float32), torch.softmax(torch.randn(24, 96), -1)
    perfguard(
        lambda x, y: function.apply(torch.log_softmax(x, -1), y, "batchmean"), logits, target,
        reference=lambda x, y: F.kl_div(torch.log_softmax(x, -1), y, reduction="batchmean"),
    )  # fmt: skip


def test_liger_tvd(perfguard):
    function = of("liger_kernel.ops.tvd", "LigerTVDLossFunction")
    p, q = torch.softmax(torch.randn(24, 96), -1).requires_grad_(), torch.softmax(torch.randn(24, 96), -1)
    perfguard(
        lambda p, q: function.apply(p, q, None, "batchmean"), p, q,
        reference=lambda p, q: 0.5 * (p - q).abs().sum() / p.shape[0],
    )  # fmt: skip
