"""The fingerprint of a call: equal where the device does the same, another where anything that counts differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perfguard.measure.devices import fake
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.metrics import fingerprint, launches
from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Reading


def launching(*names: str, binary: str | None = "code 1") -> Callable[[], None]:
    def run() -> None:
        for name in names:
            fake.launch(name, us=10.0, binary=binary)

    return run


def read(subject: Subject, slug: str = "fake-gpu") -> Reading:
    (reading,) = fingerprint.read(subject, FakeDevice(slug))
    return reading


X = torch.arange(32.0).reshape(4, 8)
BASE = Subject(run=launching("a", "b"), args=(X, torch.tensor([1, 2]), 3, "mode"))


def value(subject: Subject, slug: str = "fake-gpu") -> object:
    return read(subject, slug).value


def test_the_same_call_has_the_same_fingerprint_on_every_device_of_a_kind() -> None:
    again = Subject(run=launching("a", "b"), args=(X.clone(), torch.tensor([1, 2]), 3, "mode"))
    assert value(BASE) == value(BASE) == value(again)
    assert len(str(value(BASE))) == 16


def test_how_the_reading_describes_itself() -> None:
    reading = read(BASE)
    assert not reading.gated
    assert not reading.timed
    assert reading.drifts
    assert reading.covers == ["device_time_us"]


@pytest.mark.parametrize(
    "other",
    [
        Subject(run=launching("a"), args=BASE.args),
        Subject(run=launching("b", "a"), args=BASE.args),
        Subject(run=launching("a", "b", binary="code 2"), args=BASE.args),
        Subject(run=BASE.run, args=BASE.args, direction="backward"),
        Subject(run=BASE.run, args=BASE.args, cache="warm"),
        Subject(run=BASE.run, args=(X.half(), *BASE.args[1:])),
        Subject(run=BASE.run, args=(X.t(), *BASE.args[1:])),
        Subject(run=BASE.run, args=(X, torch.tensor([2, 1]), 3, "mode")),
        Subject(run=BASE.run, args=(X + 1, *BASE.args[1:])),
        Subject(run=BASE.run, args=(*BASE.args[:2], 4, "mode")),
        Subject(run=BASE.run, args=(*BASE.args[:3], "other")),
        Subject(run=BASE.run, args=BASE.args[:3]),
    ],
    ids=["fewer", "order", "code", "pass", "cache", "dtype", "strides", "integers", "values", "int", "text", "arity"],
)
def test_what_counts_gives_another_fingerprint(other: Subject) -> None:
    assert value(other) != value(BASE)


def test_alignment_and_hardware_count() -> None:
    memory = torch.zeros(64)
    aligned, again, half, odd = (Subject(run=BASE.run, args=(memory[at : at + 16],)) for at in (0, 16, 8, 17))
    assert value(aligned) == value(again)
    assert len({value(aligned), value(half), value(odd)}) == 3
    assert value(BASE, "fake-gpu") != value(BASE, "other-gpu")


def test_only_listed_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value(BASE)
    monkeypatch.setenv("SOME_VARIABLE", "1")
    assert value(BASE) == before
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert value(BASE) != before


def test_addresses_of_other_objects_do_not_count() -> None:
    first, second = (Subject(run=BASE.run, args=(object(),)) for _ in range(2))
    assert value(first) == value(second)


@pytest.mark.parametrize("run", [launching("a", binary=None), launching()], ids=["no binary", "nothing ran"])
def test_the_unknown_covers_nothing(run: Callable[[], None]) -> None:
    reading = read(Subject(run=run))
    assert reading.value == fingerprint.UNKNOWN
    assert reading.covers == []


def test_one_unknown_kernel_makes_all_unknown() -> None:
    def run() -> None:
        launching("a")()
        launching("b", binary=None)()

    assert value(Subject(run=run)) == fingerprint.UNKNOWN


def test_what_is_not_timed_needs_none() -> None:
    assert fingerprint.read(Subject(run=BASE.run, timed=False), FakeDevice()) == []


def test_nothing_on_a_cpu() -> None:
    from perfguard.measure.devices.cpu import CpuDevice

    assert fingerprint.read(BASE, CpuDevice()) == []


def test_launches_and_fingerprint_come_from_one_look_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    device, looked = FakeDevice(), []
    activity = device.activity
    monkeypatch.setattr(device, "activity", lambda call: (looked.append(1), activity(call))[1])
    subject = Subject(run=BASE.run, args=BASE.args)
    (reading,) = fingerprint.read(subject, device)
    counted = {each.metric: each.value for each in launches.read(subject, device)}
    assert looked == [1]
    assert reading.value == value(BASE)
    assert (counted["launches"], counted["kernels"]) == (2, ["a", "b"])
