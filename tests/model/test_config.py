"""Settings and categories: right ones read, wrong ones named."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.model.config import CATEGORIES, Config, Settings, find_project, parse_categories, read_settings
from perfguard.model.errors import UsageError


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_defaults_without_a_table_or_a_file(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == Settings()
    assert read_settings(tmp_path, pair_minutes=0).pair_minutes == 0  # no process pairs
    assert read_settings(write(tmp_path, "[project]\nname = 'x'\n")) == Settings()


def test_the_command_line_lies_over_the_table(tmp_path: Path) -> None:
    write(tmp_path, "[tool.perfguard]\ndevice = 'cpu'\nstrict = true\n")
    settings = read_settings(tmp_path, device="cuda:1", reports=None, base="origin/main")
    assert (settings.device, settings.strict, settings.reports) == ("cuda:1", True, ".perfguard")
    assert settings.base == "origin/main"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("sesions = 3", "sesions"),
        ("sessions = 5", "sessions"),
        ("strict = 1", "strict"),
        ("case_seconds = -1.0", "case_seconds"),
        ("confirmations = 3", "confirmations"),
        ("base = 1", "base"),
        ("case_minutes = 0", "case_minutes"),
        ("case_minutes = '10'", "case_minutes"),
        ("lock_minutes = -1", "lock_minutes"),
        ("pair_minutes = -1", "pair_minutes"),
        ("pair_minutes = 601", "pair_minutes"),
    ],
)
def test_a_wrong_setting_is_named_with_the_known_ones(tmp_path: Path, table: str, named: str) -> None:
    with pytest.raises(UsageError, match=rf"pyproject.toml.*{named}.*known keys: baselines, reports"):
        read_settings(write(tmp_path, f"[tool.perfguard]\n{table}\n"))


def test_broken_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pyproject.toml: not valid TOML"):
        read_settings(write(tmp_path, "[tool.perfguard\n"))


def test_categories() -> None:
    assert parse_categories("all") == frozenset(CATEGORIES) - {"stale"}  # removed by name only
    assert parse_categories("new, faster") == {"new", "faster"}
    for text in ("quicker", "new,quicker", "", ","):
        with pytest.raises(UsageError, match="is no category; known: new, faster, slower, changed, stale"):
            parse_categories(text)


def test_the_project_is_the_nearest_with_its_settings_or_the_checkout(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "package" / "src"
    inner.mkdir(parents=True)
    assert find_project(inner) == inner
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere\n")  # as in a worktree
    assert find_project(inner) == tmp_path / "repository"
    write(inner.parent, "")
    assert find_project(inner) == inner.parent


@pytest.mark.parametrize(
    ("here", "typed"),
    [(None, "a/test_b.py::C::d[e::f]"), (".", "a/test_b.py::C::d[e::f]"), ("a", "test_b.py::C::d[e::f]"),
     ("a/g", "../test_b.py::C::d[e::f]")],
)  # fmt: skip
def test_a_node_id_is_typed_where_pytest_was_started(tmp_path: Path, here: str | None, typed: str) -> None:
    config = Config(root=tmp_path, here=None if here is None else tmp_path / here)
    assert config.typed("a/test_b.py::C::d[e::f]") == typed
