"""Triton's own tutorials in its interpreter: they query the driver, run kernels and benchmarks at import.

Copied beside `python/tutorials/*.py` of Triton's repository, on a machine without a GPU. The comparisons that 05 and 08
make at import are removed: PyTorch's float16 on a CPU is not as exact as they require.

    pytest --perfguard --perfguard-lane=cpu
"""

import importlib

import pytest
import torch
import torch.nn.functional as F

HALF = torch.float16


def of(module, name):
    """A function of a tutorial. It is imported by the test, once perfguard has set up Triton."""
    return getattr(importlib.import_module(module), name)


def rand(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def test_softmax(perfguard):
    perfguard(of("02-fused-softmax", "softmax"), rand(37, 100), reference=lambda x: torch.softmax(x, -1))


@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_matmul(perfguard, activation):
    matmul = of("03-matrix-multiplication", "matmul")
    perfguard(
        lambda a, b: matmul(a, b, activation), rand(70, 48, dtype=HALF), rand(48, 90, dtype=HALF),
        reference=lambda a, b: F.leaky_relu(a @ b, 0.01) if activation else a @ b,
    )  # fmt: skip


def test_matmul_of_one_configuration(perfguard):
    kernel = of("03-matrix-multiplication", "matmul_kernel").fn

    def matmul(a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=HALF)
        grid = (-(-m // 32) * -(-n // 32),)
        kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), 32, 32, 16, 2, "")
        return c

    perfguard(matmul, rand(70, 48, dtype=HALF), rand(48, 90, dtype=HALF), reference=torch.matmul)


@pytest.mark.parametrize("rows", [24, 280])  # 256 locks: two programs share one.
def test_layer_norm(perfguard, rows):
    layer_norm = of("05-layer-norm", "layer_norm")
    perfguard(
        lambda x, w, b: layer_norm(x, w.shape, w, b, 1e-5),
        rand(rows, 100, grad=True), rand(100, grad=True), rand(100, grad=True),
        reference=lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5),
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
def test_attention(perfguard, causal):
    attention = of("06-fused-attention", "attention")

    def reference(q, k, v):  # It rounds the weights, as the kernel does; on a CPU the fused operator does not.
        scores = q @ k.transpose(-1, -2) * 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return torch.softmax(scores, -1) @ v

    perfguard(
        lambda q, k, v: attention(q, k, v, causal, 0.5, False),
        *(rand(1, 2, 256, 64, dtype=HALF, grad=True) for _ in range(3)),
        reference=reference,
    )


def test_grouped_matmul(perfguard):
    sizes = [(128, 128, 256), (256, 64, 128), (128, 192, 128)]
    perfguard(
        of("08-grouped-gemm", "group_gemm_fn"),
        [rand(m, k, dtype=HALF) for m, k, _ in sizes], [rand(k, n, dtype=HALF) for _, k, n in sizes],
        reference=lambda left, right: [a @ b for a, b in zip(left, right, strict=True)],
    )  # fmt: skip


def test_grouped_matmul_of_descriptors(perfguard):
    kernel = of("08-grouped-gemm", "grouped_matmul_tma_kernel").fn

    def matmul(left, right):  # Right operands are transposed, as the tutorial's kernel takes them.
        out = [torch.empty(a.shape[0], b.shape[0], dtype=HALF) for a, b in zip(left, right, strict=True)]
        addresses = [torch.tensor([x.data_ptr() for x in group]) for group in (left, right, out)]
        sizes = torch.tensor([[*c.shape, a.shape[1]] for a, c in zip(left, out, strict=True)], dtype=torch.int32)
        rows = torch.tensor(
            [[x.stride(0) for x in three] for three in zip(left, right, out, strict=True)], dtype=torch.int32
        )
        kernel[(4,)](*addresses, sizes, rows, len(out), 4, 128, 128, 64, False)
        return out

    sizes = [(100, 128, 256), (256, 64, 128), (128, 96, 136)]
    perfguard(
        matmul, [rand(m, k, dtype=HALF) for m, k, _ in sizes], [rand(n, k, dtype=HALF) for _, k, n in sizes],
        reference=lambda left, right: [a @ b.T for a, b in zip(left, right, strict=True)],
    )  # fmt: skip
