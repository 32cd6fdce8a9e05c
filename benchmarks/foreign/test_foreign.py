"""Fifteen tests of kernels that nobody here wrote: fla-core, conch, and the forms of Triton's tutorials.

On a GPU, or with fewer rows in Triton's interpreter. Copied beside the packages `fla`, `einops` and `conch` into a
repository of their own, so that a change in one of them is a change of the code under test:

    pip download --no-deps fla-core==0.6.0 einops conch-triton-kernels==1.3
    pytest --perfguard --perfguard-observe --perfguard-update
"""

import torch
import torch.nn.functional as F

D = "cuda" if torch.cuda.is_available() else "cpu"
BF = torch.bfloat16


def few(rows):
    """So many rows of a tensor as are given; in the interpreter a few of them."""
    return rows if D == "cuda" else rows // 128


def rand(*shape, dtype=BF):
    return torch.randn(shape, device=D, dtype=dtype)


def close(a, b, tol=2e-2):
    torch.testing.assert_close(a.float(), b.float(), atol=tol, rtol=tol)


def test_fla_rms_norm():
    from fla.modules.norm.layernorm import rms_norm

    x, w = rand(few(4096), 2048), rand(2048)
    close(rms_norm(x, w, None), F.rms_norm(x.float(), (2048,), w.float(), 1e-5), 5e-2)


def test_fla_layer_norm_backward():
    from fla.modules.norm.layernorm import layer_norm

    x, w, b = rand(few(2048), 1024).requires_grad_(), rand(1024).requires_grad_(), rand(1024).requires_grad_()
    y = layer_norm(x, w, b)
    y.backward(torch.ones_like(y))
    ref = F.layer_norm(x.detach().float(), (1024,), w.detach().float(), b.detach().float(), 1e-5)
    close(y, ref, 5e-2)


def test_fla_rms_norm_gated():
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    x, g, w = rand(few(4096), 512), rand(few(4096), 512), rand(512)
    ref = F.rms_norm(x.float(), (512,), w.float(), 1e-6) * F.silu(g.float())
    close(rms_norm_gated(x, g, w, None), ref, 6e-2)


def test_fla_l2norm():
    from fla.modules.norm.l2norm import l2norm

    x = rand(few(8192), 128)
    close(l2norm(x), F.normalize(x.float(), dim=-1))


def test_fla_swiglu():
    from fla.modules.activations import swiglu

    x, y = rand(few(4096), 2048), rand(few(4096), 2048)
    close(swiglu(x, y), F.silu(x.float()) * y.float(), 5e-2)


def test_fla_logsigmoid():
    from fla.modules.activations import logsigmoid

    x = rand(few(4096), 2048)
    close(logsigmoid(x), F.logsigmoid(x.float()))


def test_fla_rotary():
    from fla.modules.rotary.ops import rotary_embedding, rotary_embedding_ref

    x, at = rand(2, few(2048), 16, 128), torch.rand(few(2048), 64, device=D) * 6
    cos, sin = at.cos().to(BF), at.sin().to(BF)
    close(rotary_embedding(x, cos, sin), rotary_embedding_ref(x.float(), cos.float(), sin.float()), 5e-2)


def test_conch_rms_norm(perfguard):
    from conch.ops.normalization.rms_norm import rms_norm

    x, w = rand(few(4096), 2048), rand(2048)
    perfguard(lambda x, w: rms_norm(x, w, 1e-6), x, w, reference=lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6))


def test_conch_fused_add_rms_norm():
    from conch.ops.normalization.rms_norm import fused_add_rms_norm

    x, r, w = rand(few(4096), 2048), rand(few(4096), 2048), rand(2048)
    want = F.rms_norm((x + r).float(), (2048,), w.float(), 1e-6)
    close(fused_add_rms_norm(x, r, w, 1e-6)[0], want, 5e-2)


def test_conch_silu_and_mul(perfguard):
    from conch.ops.activation.silu_and_mul import silu_and_mul

    x = rand(few(4096), 4096)
    perfguard(silu_and_mul, x, reference=lambda x: F.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :])


def test_conch_gelu_tanh_and_mul():
    from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul

    x = rand(few(4096), 4096)
    close(gelu_tanh_and_mul(x), F.gelu(x[:, :2048].float(), approximate="tanh") * x[:, 2048:].float(), 6e-2)


def test_conch_fp8_quant():
    from conch.ops.quantization.fp8 import scaled_fp8_quant

    x, scale = rand(few(4096), 2048), torch.tensor([0.02], device=D)
    codes, _ = scaled_fp8_quant(x, scale)
    want = (x.float() / 0.02).clamp(-448, 448)
    assert ((codes.float() - want).abs() <= want.abs() / 8 + 0.01).all()


def test_softmax(perfguard):
    from tutorials import softmax

    perfguard(softmax, rand(few(4096), 1000, dtype=torch.float32), reference=lambda x: torch.softmax(x, -1))


def test_matmul():
    from tutorials import matmul

    a, b = rand(few(4096), 2048), rand(2048, 4096)
    close(matmul(a, b), a @ b, 0.5)


def test_tuned_matmul():
    from tutorials import tuned_matmul

    a, b = rand(few(4096), 2048), rand(2048, 4096)
    close(tuned_matmul(a, b), a @ b, 0.5)
