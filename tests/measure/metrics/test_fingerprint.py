"""The fingerprint of a call: equal if the device does the same work, different after any change that matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from perfguard.measure.metrics import launches
from perfguard.measure.metrics.subject import Subject
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice


def launching(*names: str, binary: str | None = "code 1") -> Callable[[], None]:
    def run() -> None:
        for name in names:
            fake.launch(name, us=10.0, binary=binary)

    return run


X = torch.arange(32.0).reshape(4, 8)
ARGS = (X, torch.tensor([1, 2]), 3, "mode")
BASE = Subject(run=launching("a", "b"), args=ARGS)


def value(subject: Subject, slug: str = "fake-gpu") -> object:
    (reading,) = (each for each in launches.read(subject, FakeDevice(slug)) if each.metric == "fingerprint")
    assert not reading.gated
    assert reading.covers == ([] if reading.value == launches.UNKNOWN else ["device_time_us"])
    return reading.value


def test_the_same_call_has_the_same_fingerprint_on_every_device_of_a_kind() -> None:
    again = Subject(run=launching("a", "b"), args=(X.clone(), torch.tensor([1, 2]), 3, "mode"))
    assert value(BASE) == value(again)
    assert len(str(value(BASE))) == 16
    assert value(BASE) != value(BASE, "other-gpu")


OTHERS: dict[str, Any] = {
    "fewer": {"run": launching("a")},
    "order": {"run": launching("b", "a")},
    "code": {"run": launching("a", "b", binary="code 2")},
    "pass": {"direction": "backward"},
    "cache": {"cache": "warm"},
    "dtype": {"args": (X.half(), *ARGS[1:])},
    "strides": {"args": (X.t(), *ARGS[1:])},
    "integers": {"args": (X, torch.tensor([2, 1]), 3, "mode")},
    "values": {"args": (X + 1, *ARGS[1:])},
    "number": {"args": (*ARGS[:2], 4, "mode")},
    "text": {"args": (*ARGS[:3], "other")},
    "arity": {"args": ARGS[:3]},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_change_that_matters_gives_another_fingerprint(other: dict[str, Any]) -> None:
    assert value(replace(BASE, **other, _activity=[])) != value(BASE)


def test_alignment_matters() -> None:
    memory = torch.zeros(64)
    aligned, again, half, odd = (value(Subject(BASE.run, args=(memory[at : at + 16],))) for at in (0, 16, 8, 17))
    assert aligned == again
    assert len({aligned, half, odd}) == 3


def test_only_listed_variables_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value(BASE)
    monkeypatch.setenv("SOME_VARIABLE", "1")
    assert value(BASE) == before
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert value(BASE) != before


def test_addresses_of_other_objects_do_not_matter() -> None:
    first, second = (value(Subject(run=BASE.run, args=(object(),))) for _ in range(2))
    assert first == second


def one_unknown() -> None:
    launching("a")()
    launching("b", binary=None)()


@pytest.mark.parametrize("run", [one_unknown, launching()], ids=["one unknown kernel", "nothing ran"])
def test_unknown_code_covers_nothing(run: Callable[[], None]) -> None:
    assert value(Subject(run=run)) == launches.UNKNOWN


def test_an_untimed_call_has_none() -> None:
    readings = launches.read(replace(BASE, timed=False, _activity=[]), FakeDevice())
    assert not any(each.metric == "fingerprint" for each in readings)


def test_launches_and_fingerprint_come_from_one_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    device, profiled = FakeDevice(), []
    activity = device.activity
    monkeypatch.setattr(device, "activity", lambda call: (profiled.append(1), activity(call))[1])
    readings = {each.metric: each.value for each in launches.read(Subject(run=BASE.run, args=ARGS), device)}
    assert profiled == [1]
    assert readings["fingerprint"] == value(BASE)
    assert (readings["launches"], readings["kernels"]) == (2, ["a", "b"])
