"""Settings of the compiler that a call leaves changed, and the one that lets backward passes repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from perfguard import UsageError
from perfguard._compat.torch_compiler import forget_compiled
from perfguard.measure.compiled import left_changed, settings
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.replay import backward, copies
from perfguard.model.call import Call
from perfguard.model.records import Case
from perfguard.pytest_plugin.fixture import Guarded


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


def test_a_setting_that_was_put_back_or_set_as_it_was_is_not_named() -> None:
    before = settings()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        changed = settings()
        assert left_changed(before, changed)
    torch._dynamo.config.verbose = torch._dynamo.config.verbose
    assert left_changed(before, settings()) == []
    assert left_changed(changed, settings()) == ["dynamo.capture_scalar_outputs: False -> True, now the default"]


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (((x @ w).sin().exp() @ w).relu()).sum(0)


@pytest.mark.parametrize("dynamic", [False, True])  # with sizes unknown, backward is compiled when it first runs
def test_a_compiled_backward_pass_repeats_and_changes_no_setting(dynamic: bool) -> None:
    forget_compiled()
    before = settings()
    inputs: tuple[Any, ...] = tuple(torch.randn(8, 8, requires_grad=True) for _ in range(2))
    compiled = torch.compile(product, backend="aot_eager", dynamic=dynamic)
    run = backward(Call(compiled, inputs, product))
    wanted: Any = backward(Call(product, inputs, product))()
    several = copies(Call(compiled, inputs, product), "backward")(2)
    for each in (run, run, *several, *several):
        for got, want in zip(each(), wanted, strict=True):  # type: ignore[call-overload]
            assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)
    assert settings() == before
    assert torch._functorch.config.donated_buffer


def guarded() -> Guarded:
    return Guarded(Case("suite", "case", "forward"), CpuDevice(), None)


@pytest.mark.parametrize("walk", [3, torch.ones(2), iter(())])
def test_a_walk_is_a_list(walk: Any) -> None:
    with pytest.raises(UsageError, match=r"perfguard\(walk=…\): is a .*; give a list with one entry for each step"):
        guarded()(torch.sin, torch.ones(2), reference=torch.sin, walk=walk)


def test_tests_before_do_not_use_up_the_limit_of_compilations() -> None:
    compiled = torch.compile(lambda x, n: x * n, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        for first in (0, 2, 4):  # a test each
            guarded()
            for n in (first, first + 1):
                compiled(torch.ones(2), n)
