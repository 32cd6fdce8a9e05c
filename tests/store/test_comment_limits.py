"""A run says before it measures what `perfguard comment` would not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.model.config import Config, Settings
from perfguard.model.records import Baseline, Case, CaseBaseline
from perfguard.store import comment_limits
from perfguard.store.baseline_form import render
from perfguard.store.comment_limits import most_recorded, most_recorded_in, outgrown


def selected(count: int, suite: str) -> list[Case]:
    return [Case(suite, f"f{number}", "forward") for number in range(count)]


def project(root: Path) -> Config:
    return Config(root, Settings(lanes=["cpu"]))


def put(root: Path, folder: str, suite: str, cases: int) -> Baseline:
    made = Baseline(folder, suite, cases={f"f{each}/forward": CaseBaseline({"launches": 1}) for each in range(cases)})
    path = root / folder / f"{suite}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(made))
    return made


def test_the_largest_folder_is_counted_with_and_without_parsing(tmp_path: Path) -> None:
    made = {
        folder: {suite: put(tmp_path, folder, suite, cases) for suite, cases in suites.items()}
        for folder, suites in {"cpu": {"a": 3, "b": 4}, "nvidia-h200": {"a": 6}}.items()
    }
    assert most_recorded(made) == most_recorded_in(tmp_path) == 7
    path = tmp_path / "cpu" / "a.yaml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert most_recorded_in(tmp_path) == 7
    assert most_recorded({}) == most_recorded_in(tmp_path / "none") == 0


def test_more_tests_than_the_base_doubled_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outgrown(selected(2_500, "area"), project(tmp_path)) == []
    (line,) = outgrown(selected(2_501, "area"), project(tmp_path))
    assert line == (
        "2,501 tests are up to 5,002 cases, of which perfguard comment reads 5,000 in a lane: 5,000, or twice those "
        "recorded at the merge base; merge tests and their baselines in parts"
    )
    monkeypatch.setattr(comment_limits, "LEAST_CASES", 4)
    put(tmp_path / "baselines", "cpu", "area", 3)
    assert outgrown(selected(3, "area"), project(tmp_path)) == []
    assert outgrown(selected(9, "area"), Config(tmp_path)) == []
    assert (
        "4 tests are up to 8 cases, of which perfguard comment reads 6"
        in outgrown(selected(4, "area"), project(tmp_path))[0]
    )


def test_a_file_that_would_grow_too_large_and_too_many_files_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comment_limits, "MOST_FILE_BYTES", 4_000_000)
    monkeypatch.setattr(comment_limits, "MOST_FILES", 1)
    for suite in ("a", "b"):
        put(tmp_path / "baselines", "cpu", suite, 1)
    large, many = outgrown([*selected(2_000, "a"), *selected(10, "b")], project(tmp_path))
    assert large == (
        "a: baselines of 2,000 tests take up to 4 MB, and perfguard comment reads 4 MB of one file; split the file of "
        "tests"
    )
    assert many == "2 files of baselines, of which perfguard comment reads 1; merge files of tests"
