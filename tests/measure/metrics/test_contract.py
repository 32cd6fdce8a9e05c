"""The contract text of outputs: ordinary ones short, and everything out of the ordinary told."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.metrics import contract
from perfguard.measure.metrics.subject import Subject

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
    x, y = torch.zeros(4), torch.zeros(4)
    assert describe(x.view(2, 2), y, [x]) == "float32[2,2] strides (2,1) shares memory with input 1"
    z = torch.zeros(4)
    assert describe((z, z.view(2, 2)), x) == (
        "float32[4] strides (1); float32[2,2] strides (2,1) shares memory with output 0"
    )
    assert "shares" not in describe((torch.zeros(0), torch.zeros(0)), torch.zeros(0))


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    permutation=st.randoms(use_true_random=False),
)
def test_any_layout_is_told_apart(shape: list[int], permutation: Any) -> None:
    order = list(range(len(shape)))
    permutation.shuffle(order)
    tensor = torch.zeros(shape).permute(order)
    told = describe(tensor)
    assert told == f"float32[{','.join(map(str, tensor.shape))}] strides ({','.join(map(str, tensor.stride()))})"


def test_reading_sees_inputs_and_grad_mode() -> None:
    x = torch.zeros(2, requires_grad=True)
    (reading,) = contract.read(Subject(run=lambda: x * 2, args=(x,)), FakeDevice(seed=1))
    assert (reading.metric, reading.value) == ("contract", "float32[2] strides (1) requires_grad")
    (reading,) = contract.read(Subject(run=lambda: x.detach(), args=(x,)), FakeDevice(seed=1))
    assert reading.value == "float32[2] strides (1) shares memory with input 0"


def test_a_warm_call_is_made_once() -> None:
    calls: list[bool] = []
    for warm in (False, True):
        calls.clear()
        contract.read(Subject(run=lambda: calls.append(True), warm=warm), FakeDevice(seed=1))
        assert len(calls) == 2 - warm


def read_contract(run: Callable[[], Any]) -> Any:
    (reading,) = contract.read(Subject(run=run), FakeDevice(seed=1))
    return reading


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
def test_what_a_call_prints_is_part_of_it_and_still_printed(
    write: Callable[[], object], capfd: pytest.CaptureFixture[str]
) -> None:
    def run() -> torch.Tensor:
        write()
        return torch.zeros(1)

    reading = read_contract(run)
    assert reading.value == "float32[1] strides (1); prints 9 bytes ('debug: 1')"
    assert "debug: 1" in reading.note
    said = capfd.readouterr()
    assert (said.out + said.err).count("debug: 1") == 3  # warm, listened to, once more


def test_a_silent_call_has_no_note() -> None:
    reading = read_contract(lambda: torch.zeros(1))
    assert (reading.value, reading.note) == ("float32[1] strides (1)", "")


def test_what_changes_from_call_to_call_or_process_to_process_is_left_out() -> None:
    count = iter(range(9))
    assert read_contract(lambda: print(next(count))).value == "None; prints"
    assert read_contract(lambda: print(f"at {next(count):#x}")).value == "None; prints 6 bytes ('at 0x')"


def test_what_a_first_call_prints_is_not_told() -> None:
    said: list[int] = []

    def once() -> None:
        if not said:
            print("compiling")
        said.append(1)

    assert read_contract(once).value == "None"


def test_streams_come_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    calls = iter([None, ZeroDivisionError])

    def run() -> None:
        print("before")
        if next(calls):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read_contract(run)
    print("after")
    os.write(1, b"after\n")
    said = capfd.readouterr().out
    assert (said.count("before"), said.count("after")) == (2, 2)
