"""Capturable or not, and why not; and whether a replay is right when others have used the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from perfguard.measure.devices.device import Graph
from perfguard.measure.metrics.capture import read
from perfguard.measure.metrics.subject import Subject
from perfguard.model.call import Call
from perfguard.model.config import Settings
from perfguard.model.records import Better, Case, Word
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.child import Request
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice


def kernel() -> None:
    fake.launch("kernel")


def waits() -> None:
    fake.launch("kernel")
    device = fake.current()
    assert device is not None
    device.synchronize()


@pytest.mark.parametrize(("run", "answer", "reason"), [(kernel, "yes", ""), (waits, "no", "stream is capturing")])
def test_answer_and_reason(run: Callable[[], object], answer: str, reason: str) -> None:
    (reading,) = read(Subject(run), FakeDevice(seed=1))
    assert (reading.metric, reading.value, reading.better, reading.gated) == ("capturable", answer, Better.SAME, True)
    assert reason in reading.note
    assert bool(reading.note) is (answer == "no")


def test_the_first_copy_is_asked_where_there_are_copies() -> None:
    """A backward pass can only be captured where its forward pass ran, so the subject's own one cannot."""
    (reading,) = read(Subject(waits, copies=lambda count: [kernel] * count), FakeDevice(seed=1))
    assert reading.value == "yes"


def test_no_reading_where_nothing_is_captured() -> None:
    class Plain(FakeDevice):
        captures = False

    assert read(Subject(kernel), Plain(seed=1)) == []


class Replayed:
    """A graph as CUDA's: it runs the call's work again, in the memory of the capture."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class Memory(FakeDevice):
    """A simulated GPU of three tensors: an output, a workspace, and what the allocator has free.

    `replay` is what a graph of the call does; the workspace is free, and so handed to others, once the call is over.
    """

    def __init__(self, replay: Callable[[Memory], None]) -> None:
        super().__init__(seed=1)
        self.output, self.workspace = torch.zeros(4), torch.zeros(4, dtype=torch.uint8)
        self._replay = replay

    def call(self) -> torch.Tensor:
        fake.launch("kernel")
        self.workspace.fill_(7)
        return self.output.copy_(self.workspace)

    def capture(self, calls: Sequence[Callable[[], object]], keep: int) -> Graph:
        for call in calls:
            call()
        return Replayed(lambda: self._replay(self))

    def occupy(self) -> list[torch.Tensor]:
        self.workspace.fill_(0xFF)
        return [self.workspace]


def owns_its_memory(device: Memory) -> None:
    device.output.fill_(7)


def reads_the_workspace(device: Memory) -> None:
    device.output.copy_(device.workspace)


def writes_the_workspace(device: Memory) -> None:
    device.workspace.fill_(7)
    device.output.copy_(device.workspace)


def draws(device: Memory) -> None:
    device.output.random_()


class Rounds:
    """Work whose result is another one in the replays of these numbers, as where atomic additions race."""

    def __init__(self, *other: int, work: Callable[[Memory], None] = owns_its_memory) -> None:
        self.other, self.work, self.number = other, work, 0

    def __call__(self, device: Memory) -> None:
        self.number += 1
        self.work(device)
        device.output[0] += self.number in self.other


@pytest.mark.parametrize(
    ("replay", "problem"),
    [
        (owns_its_memory, ""),
        (reads_the_workspace, "output 0: a replayed graph reads memory that it does not own"),
        (writes_the_workspace, "a replayed graph writes to memory that it does not own"),
        (draws, ""),  # differs from replay to replay: nothing can be told
        (Rounds(5), ""),  # differs now and then: in the first replay after another call, and not in the one behind it
        (Rounds(*range(5, 12)), ""),
        (Rounds(7, 9, work=reads_the_workspace), "output 0: a replayed graph reads memory that it does not own"),
    ],
)
def test_a_replay_in_used_memory(replay: Callable[[Memory], None], problem: str) -> None:
    device = Memory(replay)
    (reading,) = read(Subject(device.call), device)
    assert reading.value == "yes"
    assert reading.problem.startswith(problem)
    assert bool(reading.problem) is bool(problem)


def test_a_workspace_that_is_swapped_with_another_is_found_in_the_second_round() -> None:
    """After the first call more it is the cache's own again, and not free."""

    class Swapping(Memory):
        rounds = 0

        def occupy(self) -> list[torch.Tensor]:
            self.rounds += 1
            return super().occupy() if self.rounds % 2 == 0 else []

    device = Swapping(writes_the_workspace)
    (reading,) = read(Subject(device.call), device)
    assert reading.problem.startswith("a replayed graph writes to memory that it does not own")


def test_without_free_memory_nothing_is_decided() -> None:
    def full(device: Memory) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    device = Memory(full)
    (reading,) = read(Subject(device.call), device)
    assert (reading.value, reading.problem) == ("yes", "")


def test_a_wrong_replay_makes_the_case_wrong() -> None:
    device = Memory(reads_the_workspace)
    runner = Runner(device, Settings(case_seconds=0.05), ReadingPlan(Request()))
    call = Call(lambda x: device.call(), (torch.ones(4),), lambda x: x)
    (result,) = runner.measure(call, Case("suite", "f", "forward"))
    assert result.word is Word.WRONG
    assert result.verdicts[0].metric == "capturable"
    assert not any(reading.timed for reading in result.readings)
