"""A signal at any moment: the work stops, the cleaning up does not."""

from __future__ import annotations

import os
import signal

import pytest

from perfguard.session.pairing.sides import SIGNALS, Interrupts


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    signal.getsignal(number)  # a bytecode later the handler has run


def worked_and_cleaned(interrupts: Interrupts, number: int, done: list[str]) -> None:
    try:
        with interrupts.armed():
            send(number)
            done.append("work")
    finally:
        send(number)
        done.append("cleaned")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_work_stops_and_the_cleaning_up_does_not(number: int) -> None:
    before = signal.getsignal(number)
    done: list[str] = []
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            worked_and_cleaned(interrupts, number, done)
        send(number)
    assert done == ["cleaned"]
    assert interrupts.received
    assert signal.getsignal(number) is before


def delayed(interrupts: Interrupts, done: list[str], problem: Exception | None = None) -> None:
    with interrupts.armed():
        with interrupts.delayed():
            send()
            done.append("delayed")
            if problem:
                raise problem
        done.append("work")


def test_a_signal_waits_for_a_delayed_block() -> None:
    done: list[str] = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        delayed(interrupts, done)
    assert done == ["delayed"]


def test_an_error_of_a_delayed_block_is_told_although_a_signal_came() -> None:
    with Interrupts() as interrupts, pytest.raises(ZeroDivisionError):
        delayed(interrupts, [], ZeroDivisionError())


def test_a_signal_before_the_work_keeps_it_from_starting() -> None:
    done = []
    with Interrupts() as interrupts:
        send()
        with pytest.raises(KeyboardInterrupt), interrupts.armed():
            done.append("work")
    assert done == []
