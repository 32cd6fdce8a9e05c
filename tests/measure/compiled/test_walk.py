"""Walking inputs under a compiler that knows nothing at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfguard.measure.metrics.compilation import walk


def over(fn: Callable[..., Any], *inputs: Any) -> list[Callable[[], Any]]:
    return [lambda each=each: fn(*each) for each in inputs]


def rows(*counts: int) -> list[tuple[torch.Tensor]]:
    return [(torch.ones(count, 4),) for count in counts]


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="eager")


def test_a_call_that_compiles_nothing_is_run_once() -> None:
    calls = []
    assert walk(over(lambda x: calls.append(x), *rows(2, 3, 4))) is None
    assert len(calls) == 1


def test_sizes_are_compiled_twice_and_then_never() -> None:
    walked = walk(over(compiled(lambda x: x.sin()), *rows(2, 3, 4, 5)))
    assert walked is not None
    assert (len(walked.first.compiled), len(walked.recompiled), walked.second.frames) == (1, 1, [])
    assert "size mismatch at index 0. expected 2, actual 3" in walked.recompiled[0].recompiled
    assert walked.generated == {}


def test_the_first_lap_begins_with_nothing_whatever_ran_before() -> None:
    fn = compiled(lambda x: x.sin())
    for (x,) in rows(7, 8, 9):
        fn(x)
    first, second = (walk(over(fn, *rows(2, 3))) for _ in range(2))
    assert first is not None
    assert second is not None
    for one, other in zip(first.first.frames, second.first.frames, strict=True):
        assert (one.operators, one.guards, one.recompiled) == (other.operators, other.guards, other.recompiled)
    assert len(first.first.frames) == 2


def test_afterwards_the_process_knows_the_first_step_alone() -> None:
    fn = compiled(lambda x: x.sin())
    walk(over(fn, *rows(2, 3, 4)))
    with torch.compiler.set_stance("fail_on_recompile"):
        fn(torch.ones(2, 4))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            fn(torch.ones(3, 4))


def test_nothing_stays_compiled_where_nothing_goes_on() -> None:
    fn = compiled(lambda x: x.sin())
    walk(over(fn, *rows(2, 3)), go_on=False)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="fail_on_recompile"):
        fn(torch.ones(2, 4))


def test_what_a_second_lap_compiles_is_counted() -> None:
    """A number that grows with every call is another one on the second lap."""
    numbers = iter(range(100))
    fn = compiled(lambda x, n: x * n)
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        walked = walk([lambda: fn(torch.ones(2), next(numbers))] * 2)
    assert walked is not None
    assert [frame.recompiled for frame in walked.recompiled] == ["n == 0", "n == 1", "n == 2"]
    assert len(walked.second.frames) == 2


def test_a_step_that_raises_is_named() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise ValueError("three")
        return x.sin()

    with pytest.raises(ValueError, match="three") as raised:
        walk(over(compiled(refuses), *rows(2, 5, 3)))
    assert raised.value.__notes__[-1] == "perfguard: raised while step 2 of the walk ran under the compiler"
