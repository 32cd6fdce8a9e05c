"""What is said of an exception of the user's call, and the next step where one is known."""

from __future__ import annotations

import pytest
import torch

from perfguard.model.errors import described, next_step


def test_the_type_and_the_first_line() -> None:
    assert described(ValueError("rows: 3, not 4\nand more")) == "ValueError: rows: 3, not 4"
    assert described(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    "said", ["features must be CUDA tensors", "image must be on CUDA device", "Torch not compiled with CUDA enabled"]
)
def test_a_function_that_asks_for_a_gpu_where_there_is_none(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "perfguard.unsupported(" in next_step(ValueError(said))
    assert next_step(RuntimeError("CUDA error: an illegal memory access was encountered")) == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert next_step(ValueError(said)) == ""


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
