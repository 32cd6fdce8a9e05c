"""What is read from torch's trace, and from what it writes for people."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from perfguard.measure.compiled import Break, break_of, function_of, guard_of, traced

BREAK = """\
Graph break in user code at /home/me/model/router.py:15
Graph Break Reason: Data-dependent branching
  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`).

      The branch condition involves a tensor computed as follows:
        # File "/home/me/model/router.py", line 15, in choose, code: if y.sum() > 0:  # rarely
        gt = gt(sum_1, 0)

User code traceback:
  File "/home/me/train.py", line 27, in <module>
    step(x)
  File "/home/me/model/router.py", line 15, in choose
    if y.sum() > 0:  # rarely
       ^^^^^^^^^^^^
"""
NESTED = """\
Graph break in user code at /home/me/model/router.py:9
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Data-dependent branching
  Higher Order Operator: torch.utils.checkpoint.checkpoint

User code traceback:
  File "/home/me/model/router.py", line 9, in inner
    if y.sum() > 0:
"""
SKIPPED = """\
Graph break: torch.compile cannot properly resume from this graph break, which results in a skip.
torch.compile will skip tracing the frame f (/home/me/loop.py line 3) and fall back to eager.
The graph break occurred in the following user code:
  File "/home/me/loop.py", line 5, in f
    print(x)
"""


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (BREAK, Break("choose", "Data-dependent branching (`if y.sum() > 0:`)", "router.py:15")),
        (NESTED, Break("inner", "Data-dependent branching (`if y.sum() > 0:`)", "router.py:9")),
        (
            SKIPPED,
            Break(
                "f",
                "Graph break: torch.compile cannot properly resume from this graph break, which results in a skip. "
                "(`print(x)`)",
                "loop.py:5",
            ),
        ),
        (SKIPPED.partition("    print")[0], Break("f", SKIPPED.splitlines()[0], "loop.py:5")),
        ("", Break("unknown", "unknown", "unknown:0")),
    ],
)
def test_breaks_name_reason_function_and_line(payload: str, found: Break) -> None:
    assert break_of(payload) == found


@pytest.mark.parametrize(
    ("payload", "guard"),
    [
        (
            "0/0: tensor 'x' size mismatch at index 0. expected 3, actual 4",
            "tensor 'x' size mismatch at index 0. expected 3, actual 4",
        ),
        ('["1/1: n == 2     # return y * n  # a.py:17 in f\\nUser stack trace:\\n  …", "1/0: n == 1"]', "n == 2"),
        ("", "unknown guard"),
    ],
)
def test_the_guard_that_failed(payload: str, guard: str) -> None:
    assert guard_of(payload) == guard


def test_functions_are_named_without_lines_and_folders() -> None:
    assert function_of("/home/me/model/block.py", "forward") == "block.forward"
    assert function_of("/elsewhere/block.py", "torch_dynamo_resume_in_forward_at_31") == "block.forward, resumed"


def test_a_function_of_a_user_has_its_line_wherever_it_is(tmp_path: Path) -> None:
    """Also below a folder that is called torch, which torch's own files are recognised by no longer."""
    path = tmp_path / "torch" / "model.py"
    space: dict[str, Any] = {}
    exec(compile("def twice(x):\n    return x * 2\n", str(path), "exec"), space)
    with traced() as trace:
        torch.compile(space["twice"], backend="eager")(torch.ones(3))
    assert [frame.place for frame in trace.frames] == ["model.py:1 in twice"]


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() > 0:
        y = y + 1
    return y * 2


def test_a_break_once_though_tracing_starts_again() -> None:
    with traced() as trace:
        torch.compile(branching, backend="eager")(torch.ones(3))
    assert [(each.function, each.reason) for each in trace.breaks] == [
        ("branching", "Data-dependent branching (`if y.sum() > 0:`)")
    ]
    assert trace.breaks[0].place.startswith("test_trace.py:")
    assert [(frame.function, frame.operators) for frame in trace.compiled] == [
        ("test_trace.branching", 3),
        ("test_trace.branching, resumed", 2),
    ]
    assert all(frame.guards for frame in trace.compiled)


@pytest.mark.filterwarnings("ignore:.*recompile_limit")
def test_a_limit_that_is_reached_is_told() -> None:
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False), traced() as trace:
        compiled = torch.compile(lambda x, n: x * n, backend="eager")
        for n in range(4):
            compiled(torch.ones(3), n)
    assert [frame.recompiled for frame in trace.recompiled] == ["n == 0", "n == 1"]
    assert [frame.problem for frame in trace.recompiled] == ["", "Dynamo recompile limit exceeded"]


def test_nobody_else_hears_and_nothing_stays() -> None:
    heard: list[logging.LogRecord] = []
    handler = logging.Handler(0)
    handler.emit = heard.append  # type: ignore[method-assign]
    root, logger = logging.getLogger(), logging.getLogger("torch.__trace")
    before = logger.propagate, [*logger.handlers]
    root.addHandler(handler)
    try:
        with traced():
            torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(3))
    finally:
        root.removeHandler(handler)
    assert [record for record in heard if record.name == "torch.__trace"] == []
    assert logger.propagate == before[0]
    assert not {type(each).__name__ for each in logger.handlers} - {type(each).__name__ for each in before[1]}
