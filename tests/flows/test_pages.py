"""The pages that a newcomer types: their commands run as they are written, and print what the pages show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import Project
from tests.flows.pages import ROOT, Reader, compare, environment_in
from tests.nursery import Nursery

START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def reader(tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Somebody in an empty folder."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (tmp_path / "typed").mkdir()
    return Reader(tmp_path / "typed", environment_in(tmp_path, nursery.python))


def test_start_until_a_red_pull_request(reader: Reader) -> None:
    """With settings that let a run take a fourth of its time; the rest, and a reader's settings, are tried at night."""
    folder = reader.folder / "my-kernels"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[tool.perfguard]\nextra_seconds = 0\ncase_seconds = 0.02\ntargets = []\n")
    reader.read(START, until="6. A green pull request")
    assert (folder / "baselines" / "cpu" / "test_norm.yaml").is_file()


@pytest.mark.nightly
def test_the_whole_of_start(reader: Reader) -> None:
    reader.read(START)
    record = (reader.folder / "baselines" / "cpu" / "test_norm.yaml").read_text()
    assert "reason: callers may write into them" in record


@pytest.mark.nightly
def test_the_commands_of_the_readme(recorded: Project, tmp_path: Path, nursery: Nursery) -> None:
    """In the project of the other flows, whose slower kernel is that of the page's summary."""
    section = README.partition("\n## A run\n")[2].partition("\n## ")[0].replace("PATH", sys.executable)
    reader = Reader(recorded.path, environment_in(tmp_path / "reader", nursery.python))
    section = section.replace("explain CASE", "explain --help")  # This machine has no such GPU.
    reader.read(section.replace("```text", "```"))
    assert len(reader.typed) == 6
    recorded.kernel(us=55.0, launches=2)
    summary = re.search(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert summary is not None
    either = re.sub(r"\[(64|96)\]", "[…]", summary[1])  # The two cases are equally slow.
    compare(either, "\n".join(recorded.guard().outlines))


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("```sh\nexit 3\n```\n", r"^\$ exit 3\n"),
        ("```sh\ntrue  # exit status 10\n```\n", r"^\$ true"),
        ("```sh\necho one; echo two\n```\n```text\ntwo\none\n```\n", "the page shows"),
        ("```sh\necho one; echo two; echo three\n```\n```text\none\nthree\n```\n", "the page shows"),
        ("The file `a/b.py`:\n```python\nx = 1\n```\n```sh\ncat a/b.py\n```\n```text\nx = 2\n```\n", "the page shows"),
    ],
)
def test_a_page_that_is_not_true_is_noticed(page: str, told: str, reader: Reader) -> None:
    with pytest.raises(AssertionError, match=told):
        reader.read(page)


def test_a_page_that_is_true_is_read(reader: Reader) -> None:
    reader.read(
        "`a/b.py`, a file:\n\n```python\nx = 1\n```\n\n```sh\ncd a && \\\n  cat b.py\necho took 3.2 s; echo between\n"
        "pwd; false  # exit status 1\n```\n\n```text\nx = 1\ntook 4 s\n…\n…/typed/a\n```\n```toml\nkey = 1\n```\n"
        "# End\n```sh\nexit 7\n```\n",
        until="End",
    )
    assert [each.command.partition(" ")[0] for each in reader.typed] == ["cd", "echo", "pwd;"]
    assert sorted(path.name for path in reader.folder.iterdir()) == ["b.py"]
