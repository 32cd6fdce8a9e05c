"""Which baselines there are; files are replaced together and whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import render


def put(root: Path, folder: str, suite: str, *keys: str) -> Path:
    cases = {key: CaseBaseline(entries={"launches": 1}) for key in keys}
    path = root / folder / f"{suite}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(Baseline(hardware=folder, suite=suite, cases=cases)), encoding="utf-8")
    return path


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_empty_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "baselines")
    assert store.load("nvidia-h200", "fp8") is None
    assert store.folders() == []
    assert not (tmp_path / "baselines").exists()


def test_folders_are_not_empty(tmp_path: Path) -> None:
    for folder in ("nvidia-h200", "amd-mi300x", "cpu-x", "cpu"):
        put(tmp_path, folder, "fp8", "a/forward")
    (tmp_path / "empty").mkdir()
    assert Store(tmp_path).folders() == ["amd-mi300x", "cpu", "cpu-x", "nvidia-h200"]


def test_a_file_changed_behind_the_store_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(tmp_path, "x", "fp8", "a/forward")
    assert list(store.load("x", "fp8").cases) == ["a/forward"]  # type: ignore[union-attr]
    put(tmp_path, "x", "fp8", "b/forward")
    assert list(store.load("x", "fp8").cases) == ["b/forward"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("folder", "suite"), [("..", "x"), ("x", "../y"), ("x", "/etc/y"), ("x", ""), ("x", "a b")])
def test_names_stay_below_the_root(tmp_path: Path, folder: str, suite: str) -> None:
    with pytest.raises(BaselineError, match="cannot name a baseline file; use letters"):
        Store(tmp_path).load(folder, suite)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failing_write_leaves_a_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = put(tmp_path, "x", "first", "a/forward")
    before = snapshot(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(BaselineError, match=r"first.yaml: cannot write \(No space left on device\); make room"):
        Store(tmp_path).replace({path: b"new"})
    assert snapshot(tmp_path) == before


def test_a_failure_half_way_says_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [put(tmp_path, "x", name, "a/forward") for name in ("first", "second")]
    kept, replace = paths[1].read_bytes(), os.replace

    def once(source: Path, target: Path) -> None:
        if target == paths[1]:
            raise OSError(13, "Permission denied", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(BaselineError, match=r"second.yaml: cannot write .*already written: .*first.yaml"):
        Store(tmp_path).replace(dict.fromkeys(paths, b"new"))
    assert snapshot(tmp_path) == {"x/first.yaml": b"new", "x/second.yaml": kept}
