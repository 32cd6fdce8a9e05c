"""The contract text of outputs: ordinary ones short, and everything out of the ordinary named."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfguard.measure.metrics import contract
from perfguard.measure.metrics.subject import Subject
from perfguard.testing.fake import FakeDevice

CPU = torch.device("cpu")


def describe(outputs: Any, *inputs: Any) -> str:
    return contract.describe(outputs, CPU, inputs)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.zeros(3, 4), "float32[3,4] strides (4,1)"),
        (lambda: torch.zeros(4, 3).t(), "float32[3,4] strides (1,3)"),
        (lambda: torch.zeros(4, 1).expand(4, 5), "float32[4,5] strides (1,0)"),
        (lambda: torch.zeros(8, 8)[::2, ::4], "float32[4,2] strides (16,4)"),
        (lambda: torch.tensor(1.0, dtype=torch.float64), "float64[] strides ()"),
        (lambda: torch.zeros(0, 5), "float32[0,5] strides (5,1)"),
        (lambda: torch.zeros(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn[2] strides (1)"),
        (lambda: torch.zeros(2, requires_grad=True), "float32[2] strides (1) requires_grad"),
        (lambda: torch.zeros(9)[1:], "float32[8] strides (1) offset 1 aligned to 4"),
        (lambda: torch.zeros(9)[4:], "float32[5] strides (1) offset 4"),  # 16 bytes on: as aligned as any
        (lambda: torch.zeros(9, dtype=torch.bfloat16)[4:], "bfloat16[5] strides (1) offset 4 aligned to 8"),
        (lambda: torch.zeros(2, 2).to_sparse(), "float32[2,2] sparse_coo"),
        (lambda: torch.zeros(2, device="meta"), "float32[2] strides (1) on meta"),
        (lambda: None, "None"),
        (lambda: 3, "int"),
        (lambda: (), "()"),
        (lambda: (torch.zeros(1),), "(float32[1] strides (1))"),
        (lambda: (torch.zeros(1), None), "float32[1] strides (1); None"),
        (lambda: [torch.zeros(1)], "[float32[1] strides (1)]"),
        (lambda: {"x": torch.zeros(1), "y": (1.0, 2)}, "{x: float32[1] strides (1); y: (float; int)}"),
    ],
)
def test_text(make: Callable[[], Any], text: str) -> None:
    assert describe(make()) == text


def test_outputs_that_share_memory() -> None:
    x, y, z = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    assert describe(x.view(2, 2), y, [x]) == "float32[2,2] strides (2,1) shares memory with input 1"
    assert describe((z, z.view(2, 2)), x) == (
        "float32[4] strides (1); float32[2,2] strides (2,1) shares memory with output 0"
    )
    assert "shares" not in describe((torch.zeros(0), torch.zeros(0)), torch.zeros(0))


def read(run: Callable[[], Any], **options: Any) -> Any:
    (reading,) = contract.read(Subject(run=run, **options), FakeDevice(seed=1))
    return reading


def test_reading_sees_inputs_and_grad_mode() -> None:
    x = torch.zeros(2, requires_grad=True)
    assert read(lambda: x * 2, args=(x,)).value == "float32[2] strides (1) requires_grad"
    assert read(lambda: x.detach(), args=(x,)).value == "float32[2] strides (1) shares memory with input 0"


def test_a_warm_call_is_made_once() -> None:
    calls: list[bool] = []
    for warm in (False, True):
        calls.clear()
        read(lambda: calls.append(True), warm=warm)
        assert len(calls) == 2 - warm


@pytest.mark.parametrize(
    "write",
    [
        lambda: print("debug: 1"),
        lambda: print("debug: 1", file=sys.stderr),
        lambda: os.write(1, b"debug: 1\n"),
        lambda: os.write(2, b"debug: 1\n"),
        lambda: ctypes.CDLL(None).printf(b"debug: 1\n"),  # buffered by C, as the device's printf is
    ],
    ids=["print", "stderr", "descriptor 1", "descriptor 2", "printf"],
)
def test_prints_of_a_call_are_part_of_it_and_still_printed(
    write: Callable[[], object], capfd: pytest.CaptureFixture[str]
) -> None:
    def run() -> torch.Tensor:
        write()
        return torch.zeros(1)

    reading = read(run)
    assert reading.value == "float32[1] strides (1); prints 9 bytes ('debug: 1')"
    assert "debug: 1" in reading.note
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("debug: 1") == 3  # warm, read, once more


def test_prints_that_differ_from_call_to_call_or_process_to_process_are_left_out() -> None:
    count = iter(range(9))
    assert read(lambda: print(next(count))).value == "None; prints"
    assert read(lambda: print(f"at {next(count):#x}")).value == "None; prints 6 bytes ('at 0x')"
    first = iter(["compiling"])
    silent = read(lambda: print(*first, end=""))  # after its first call
    assert (silent.value, silent.note) == ("None", "")


def test_streams_come_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    calls = iter([None, ZeroDivisionError])

    def run() -> None:
        print("before")
        if next(calls):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read(run)
    print("after")
    os.write(1, b"after\n")
    printed = capfd.readouterr().out
    assert (printed.count("before"), printed.count("after")) == (2, 2)


def test_how_many_results_vary_is_no_fact() -> None:
    """What follows from a varying gradient, rounded to bfloat16, differs in some runs alone: a count of them is chance.
    An unchanged block on an H200 had one such gradient in one run and two in the next."""
    none, one, two = (contract.nondeterministic([f"output {n}" for n in range(count)]) for count in range(3))
    assert (none.value, one.value, two.value) == (0, 1, 1)
    assert two.note == "from run to run another output 0, another output 1"
