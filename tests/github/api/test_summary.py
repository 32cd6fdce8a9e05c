"""The job's summary and its log."""

from __future__ import annotations

from pathlib import Path

from perfguard.github.api.job_summary import without_commands, write_summary

LIMIT = 2**20


def test_all_of_it_where_it_fits(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_text("from before\n", encoding="utf-8")
    assert write_summary({"GITHUB_STEP_SUMMARY": str(path)}, ["# one\n", "two"], "the rest") == ""
    assert path.read_text(encoding="utf-8") == "from before\n# one\n\ntwo\n\n"


def test_a_large_one_ends_at_a_section_and_points_to_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_bytes(b"x" * 1000)
    sections = ["é" * 100_000] * 6
    assert write_summary({"GITHUB_STEP_SUMMARY": str(path)}, sections, "the rest is in the artifact") == ""
    text = path.read_bytes()[1000:].decode()
    assert text == ("é" * 100_000 + "\n\n") * 5 + "the rest is in the artifact\n\n"
    assert path.stat().st_size <= LIMIT


def test_a_full_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_bytes(b"x" * (LIMIT - 3))
    assert write_summary({"GITHUB_STEP_SUMMARY": str(path)}, ["one"], "the rest") == ""
    assert path.stat().st_size == LIMIT - 3


def test_no_summary_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    assert write_summary({}, ["one"], "the rest") == ""
    problem = write_summary({"GITHUB_STEP_SUMMARY": str(tmp_path)}, ["one"], "the rest")
    assert "Is a directory" in problem


def test_strangers_lines_stand_between_stop_commands_with_a_mark_they_cannot_know() -> None:
    text = "::error::x\n::stop-commands::y\n::y::"
    first, second = without_commands(text), without_commands(text)
    start, *lines, end = first.split("\n")
    assert "\n".join(lines) == text
    mark = start.removeprefix("::stop-commands::")
    assert end == f"::{mark}::"
    assert mark not in second
    assert len(mark) > 32
