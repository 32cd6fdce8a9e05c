"""Settings of the compiler that are not as torch has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from perfguard.measure.compiled.settings import left_changed, settings


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """torch's own patch knows what stood there before; pytest's deletes the setting."""
    # They bring triton, which tests/kernels/paths.py has to be the first to import.
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    precision = torch.get_float32_matmul_precision()
    with (
        torch._dynamo.config.patch(capture_scalar_outputs=False, recompile_limit=8),
        torch._inductor.config.patch({"triton.cudagraphs": False}),
    ):
        yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


def test_each_that_is_changed_is_named_with_both_values() -> None:
    before = settings()
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.recompile_limit = 64
    torch._inductor.config.triton.cudagraphs = True
    torch.set_float32_matmul_precision("high")
    assert left_changed(before, settings()) == [
        "dynamo.capture_scalar_outputs: False -> True",
        "dynamo.recompile_limit: 8 -> 64",
        "inductor.triton.cudagraphs: False -> True",
        "torch.float32_matmul_precision: highest -> high",
    ]
    torch.use_deterministic_algorithms(True)  # sets one of inductor's too
    assert "torch.deterministic_algorithms: False -> True" in left_changed(before, settings())


def test_what_is_put_back_or_set_as_it_was_is_not_named() -> None:
    before = settings()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert left_changed(before, settings())
    torch._dynamo.config.verbose = torch._dynamo.config.verbose
    assert left_changed(before, settings()) == []


def test_what_was_changed_before_and_no_more_is_named_too() -> None:
    torch._dynamo.config.capture_scalar_outputs = True
    before = settings()
    torch._dynamo.config.capture_scalar_outputs = False
    assert left_changed(before, settings()) == [
        "dynamo.capture_scalar_outputs: False -> True, now the default"
    ]  # fmt: skip


def test_compiling_changes_nothing() -> None:
    before = settings()
    torch.compile(lambda x: x.sin(), backend="aot_eager", fullgraph=True)(torch.ones(3))
    assert settings() == before
