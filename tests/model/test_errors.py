"""What is said of an exception of the user's call, and the next step where one is known."""

from __future__ import annotations

import pytest
import torch

from perfguard.model.errors import described, next_step


def test_the_type_and_the_first_line() -> None:
    assert described(ValueError("rows: 3, not 4\nand more")) == "ValueError: rows: 3, not 4"
    assert described(KeyError()) == "KeyError"


@pytest.mark.filterwarnings("ignore:.*recompile_limit")
def test_a_call_that_is_compiled_anew_each_time() -> None:
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * 2

    fn = torch.compile(Counting(), backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(2):
            fn(torch.ones(3))
        with pytest.raises(Exception, match="fullgraph") as raised:
            fn(torch.ones(3))
    assert "TORCH_LOGS=recompiles names what changes from call to call" in next_step(raised.value)
