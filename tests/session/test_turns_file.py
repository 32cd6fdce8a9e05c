"""What is remembered of a case between runs."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from perfguard.check.turns import Reached
from perfguard.model.records import Case
from perfguard.session import turns_file
from perfguard.session.turns_file import TurnsFile

REACHED = Reached("plan", {"values": 2, "sizes": 1}, [("values", 1)])


def case(name: str, direction: str = "forward") -> Case:
    return Case("suite", name, direction)  # type: ignore[arg-type]


def test_what_is_put_is_there_in_the_next_run_and_on_other_hardware_is_not(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "turns.json"
    first = TurnsFile(path, "gpu")
    assert first.of(case("a")) is None
    first.put(case("a"), REACHED)
    assert first.of(case("a")) == REACHED
    first.save()
    assert TurnsFile(path, "gpu").of(case("a")) == REACHED
    assert TurnsFile(path, "cpu").of(case("a")) is None
    assert TurnsFile(path, "gpu").of(case("b")) is None
    again = TurnsFile(path, "gpu")
    again.put(case("a"), None)
    again.save()
    assert path.read_bytes() == b"{}"


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "turns.json"
    file = TurnsFile(path, "gpu")
    file.put(case("a"), None)
    file.save()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"gpu suite::a": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_remembers_nothing_and_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "turns.json"
    path.write_bytes(damaged)
    file = TurnsFile(path, "gpu")
    assert file.of(case("a")) is None
    file.put(case("a"), REACHED)
    file.save()
    assert TurnsFile(path, "gpu").of(case("a")) == REACHED


def test_where_nothing_can_be_written_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = TurnsFile(tmp_path / "file" / "turns.json", "gpu")
    file.put(case("a"), REACHED)
    file.save()
    assert file.of(case("a")) == REACHED


def test_what_another_process_has_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "turns.json"
    one, other = TurnsFile(path, "gpu"), TurnsFile(path, "gpu")
    one.put(case("a"), REACHED)
    other.put(case("b"), REACHED)
    one.save()
    other.save()
    assert {name: TurnsFile(path, "gpu").of(case(name)) for name in "ab"} == {"a": REACHED, "b": REACHED}


def _write(path: Path, worker: int) -> None:
    file = TurnsFile(path, "gpu")
    for number in range(10):
        file.put(case(f"{worker} {number}"), REACHED)
        file.save()


def test_workers_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "turns.json"
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_write, args=(path, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = TurnsFile(path, "gpu")
    assert all(found.of(case(f"{worker} {number}")) == REACHED for worker in range(4) for number in range(10))


def test_those_that_were_not_written_for_longest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_file, "_MOST_CASES", 2)
    path = tmp_path / "turns.json"
    for name in "abc":
        file = TurnsFile(path, "gpu")
        file.put(case(name), REACHED)
        file.save()
    assert [TurnsFile(path, "gpu").of(case(name)) for name in "abc"] == [None, REACHED, REACHED]


def test_kinds_that_any_case_of_the_lane_has_tried_with_a_code(tmp_path: Path) -> None:
    file = TurnsFile(tmp_path / "turns.json", "gpu")
    file.put(case("a"), Reached("plan", {"values": 2, "sizes": 0}, code="mine"))
    file.put(case("b"), Reached("other plan", {"layouts": 1}, code="mine"))
    file.put(case("c"), Reached("plan", {"dtypes": 1}, code="another's"))
    file.save()
    assert TurnsFile(tmp_path / "turns.json", "gpu").tried("mine") == file.tried("mine") == {"values", "layouts"}
    assert TurnsFile(tmp_path / "turns.json", "cpu").tried("mine") == set()
