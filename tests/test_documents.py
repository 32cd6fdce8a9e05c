"""What the pages promise: links that lead somewhere, tables of their data, a reference that leaves nothing out."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shlex
import string
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.mutation.report import page as mutation_page
from benchmarks.rows import in_rows
from perfguard import cli
from perfguard.github.init.workflows import HOSTED, Installed, Source, lane_workflows, measure_workflow, with_lanes
from perfguard.model.config import CATEGORIES, Settings, parse_categories
from perfguard.model.errors import EXIT_MEANINGS
from perfguard.model.records import Word
from perfguard.pytest_plugin.fixture import Guarded
from tests import documents

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: no {link}"
        if page.parent.name == "docs":
            assert target.parent == page.parent, f"{page.name}: {link} is no page of the built documentation"
        if anchor:
            assert anchor in set(_anchors(target)), f"{page.name}: no heading for {link}"


def test_every_page_is_reached_from_the_index() -> None:
    names = {page.name for page in PAGES if page.parent.name == "docs"}
    reached, left = set[str](), ["index.md"]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            text = (ROOT / "docs" / name).read_text(encoding="utf-8")
            left += [path for link in _LINK.findall(text) if (path := link.partition("#")[0]) in names]
    assert names == reached


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.json")), ids=lambda path: path.stem)
def test_figures_are_kept_in_rows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == in_rows(json.loads(text)) + "\n", "write it by benchmarks.rows.write_rows"


def test_the_mutation_score_is_that_of_its_file() -> None:
    seen = json.loads((ROOT / "docs" / "mutation.json").read_bytes())
    page = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")
    assert mutation_page(seen) == page, "python -m benchmarks.mutation --table docs/mutation.md docs/mutation.json"


def test_the_results_are_those_of_their_files() -> None:
    text = documents.PAGE.read_text(encoding="utf-8")
    assert documents.filled(text) == text, "python -m tests.documents"


def test_the_reference_has_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", _section("Settings"), re.MULTILINE))
    assert rows.keys() == set(Settings.__struct_fields__)
    for name, default in zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True):
        value = default.factory() if hasattr(default, "factory") else default
        shown = list(value) if isinstance(value, tuple) else value
        assert rows[name] == (str(shown).lower() if isinstance(shown, bool) else str(shown).replace("'", '"')) or (
            isinstance(shown, str) and rows[name] == f'"{shown}"'
        )


def test_the_reference_has_every_option_verdict_and_status(pytestconfig: pytest.Config) -> None:
    fixture = set(re.findall(r"^\| `(\w+)` \|", _section("The fixture"), re.MULTILINE))
    keywords = inspect.signature(Guarded.__call__).parameters.values()
    assert fixture == {each.name for each in keywords if each.kind is each.KEYWORD_ONLY}
    from perfguard.plugin import pytest_addoption

    named = set(re.findall(r'"(--perfguard[a-z-]*)"', inspect.getsource(pytest_addoption))) - {"--perfguard-session"}
    assert set(re.findall(r"^\| `(--perfguard[a-z-]*)", REFERENCE, re.MULTILINE)) == named
    said = set(re.findall(r"`([A-Z_]+[A-Za-z ()]*)`", _section("Verdicts")))
    assert {word.value for word in Word} - {"SUSPECT"} <= said
    statuses = {int(status) for status in re.findall(r"^\| (\d+) \|", _section("Exit statuses"), re.MULTILINE)}
    assert statuses == {int(status) for status in EXIT_MEANINGS}
    assert all(f"`{category}`" in REFERENCE for category in CATEGORIES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_ones_that_perfguard_takes(page: Path) -> None:
    """`pytest` with options that the plugin has, and `perfguard` with arguments that its parser accepts."""
    from perfguard.plugin import pytest_addoption

    known = set(re.findall(r'"(--perfguard[a-z-]*)"', inspect.getsource(pytest_addoption)))
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for body in (body for kind, body in blocks if kind in ("", "sh")):
        for line in body.splitlines():
            found = re.match(r"\s*(?:\w+=\S+ )*(pytest|perfguard|scripts/guard) (?!\S+ \[)", line)
            if found is None:
                continue
            words = shlex.split(line[found.end() :], comments=True)
            if found[1] == "perfguard":
                words = words[: words.index("--")] if "--" in words else words
                parser: argparse.ArgumentParser = cli._parser(words[0])
                parser.parse_args(words)
            options = [word.partition("=") for word in words if word.startswith("--perfguard")]
            assert {name for name, _, _ in options} <= known, line
            for name, _, value in options:
                if name == "--perfguard-update" and value:
                    assert parse_categories(value), line


def test_ci_shows_what_perfguard_init_writes() -> None:
    source = Source("github.com", "OWNER/perfguard", "<40-digit commit>")
    installed = Installed("3.12", ["torch==2.13.0+cpu", "triton==3.9.0"], ["-e ."])
    lanes = {"nvidia-h200": ["self-hosted", "gpu"], "cpu": HOSTED}
    written = [measure_workflow(lanes, "main"), *lane_workflows(source, installed).values(), with_lanes("", [*lanes])]
    page = (ROOT / "docs" / "ci.md").read_text("utf-8").partition("\n## Other CI services\n")[0]
    shown = re.findall(r"^ *```(?:yaml|toml)\n(.*?)^ *```$", page, re.S | re.M)
    assert len(shown) == 4
    for block in map(textwrap.dedent, shown):
        height = block.count("\n")
        lines = [text.splitlines(keepends=True) for text in written if text]
        parts = ("".join(text[at : at + height]) for text in lines for at in range(len(text)))
        assert any(textwrap.dedent(part) == block for part in parts), block


def _section(heading: str) -> str:
    return REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def _anchors(page: Path) -> Iterator[str]:
    """As GitHub makes them of headings."""
    kept = string.ascii_lowercase + string.digits + "_- "
    for heading in re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield "".join(letter for letter in plain if letter in kept or letter.isalpha()).replace(" ", "-")
