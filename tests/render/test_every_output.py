"""No text of a report commands a terminal, begins a line of its own, or is markup: every output, every field."""

from __future__ import annotations

import enum
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perfguard.cli import main
from perfguard.model.errors import ExitStatus
from perfguard.model.records import BaseTree, PairedCase, PairedTime, Pairing, Verdict, Word
from perfguard.render.markdown import render_markdown, render_resolved
from perfguard.render.outputs import OUTPUTS
from perfguard.render.overview import Headline, LaneView, Overview, Refused
from perfguard.store.report_file import save_report
from tests.render.examples import (
    BETTER,
    BROKEN,
    CONTRACT,
    DOUBTED,
    EDIT,
    EXAMPLES,
    FASTER,
    LAUNCHES,
    NEW,
    NOISY,
    OLD_FAULT,
    SLOWER,
    WRONG,
    lane,
    other_code,
    overview,
    result,
)

MARK = "perfguardwashere"
# Writes the clipboard, clears the screen (in 7 and in 8 bits), begins a line, reorders, hides, and is an element.
HOSTILE = f"a\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\r\n{MARK}\u2028{MARK}\x85{MARK}\u202e\u2066\u200b\U000e0041<img src=x>z"
OWN = {"unread", "loosens"}  # Perfguard's own words, with numbers and without names.
OBEYED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def planted(value: Any) -> Iterator[Any]:
    """Copies of `value`, each with HOSTILE in place of one of its texts; whether the field's type allows it or not."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        yield HOSTILE
    elif isinstance(value, msgspec.Struct):
        for name in (each for each in value.__struct_fields__ if each not in OWN):
            yield from (replace(value, **{name: each}) for each in planted(getattr(value, name)))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield {HOSTILE if name == key else name: each for name, each in value.items()}
            yield from ({**value, key: each} for each in planted(item))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from (type(value)([*value[:at], each, *value[at + 1 :]]) for each in planted(item))


def everywhere(value: Any) -> Any:
    """`value` with HOSTILE before all of its texts, which stay apart."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return HOSTILE + value
    if isinstance(value, msgspec.Struct):
        names = set(value.__struct_fields__) - OWN
        return replace(value, **{name: everywhere(getattr(value, name)) for name in names})
    if isinstance(value, dict):
        return {everywhere(name): everywhere(item) for name, item in value.items()}
    return type(value)(map(everywhere, value)) if isinstance(value, list | tuple) else value


def whole() -> Overview:
    """An overview in which every part of every output is filled."""
    gone = Verdict(Word.STALE, suite="norms", case="gone/forward", reason="its test is gone")
    full = lane(
        "nvidia-h200",
        replace(result("rms_norm[64]", SLOWER, LAUNCHES, us=64.93), notes=["a note"], unchecked={"eps of f": "0.0"}),
        replace(result("observed", SLOWER), case=replace(result("observed").case, direction="test")),
        result("gelu", WRONG, us=None), result("silu", DOUBTED), result("softmax", BROKEN, us=None),
        result("cat", NOISY), result("pad", FASTER), result("add", BETTER, OLD_FAULT), result("mul", NEW),
        result("sub", CONTRACT), other_code("div", "kernel"),
        refused=[Refused("exp[64]/forward", "0 is no time")], unmeasured=["log[64]/forward"],
    )  # fmt: skip
    report = full.report
    assert report is not None
    pairing = Pairing("9ab77e2", [PairedCase("norms", "cat/forward", times=[PairedTime("device_time_us")])], 3, "ended")
    report = replace(
        report,
        stale=[gone], pairings=[pairing], bases={"9ab77e2": BaseTree("9ab77e2")}, fresh_problem="no room",
        hardware=replace(report.hardware, warnings=["clocks are not locked"], target="cuda"),
        conditions=[replace(report.conditions[0], throttle_reasons=["power"])],
    )  # fmt: skip
    silent = LaneView("amd-mi300x", problem="nothing was uploaded")
    return replace(
        overview(replace(full, report=report), silent, edits=[EDIT]), warnings=["other limits"], unread="500 files"
    )


def texts_in(value: Any) -> Iterator[str]:
    """The texts in plain data, with line breaks as an attacker's line."""
    if isinstance(value, str):
        yield value.replace("\n", "\r")
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_in(each)


def shown(given: Overview) -> Iterator[tuple[str, str]]:
    """The name and the text of each output."""
    for name, render in OUTPUTS.items():
        alone = [Overview([each]) for each in given.lanes if each.report is not None]
        for one in alone if name == "pytest-benchmark" else [given, *alone]:
            yield name, (text := render(one))
            if name == "html":  # The page's script shows these, and copies the commands.
                (data,) = re.findall('id="data">(.*)</script>', text)
                yield "texts of the page", "\n".join(texts_in(json.loads(data)))
    yield "markdown", render_markdown(given, 4000)
    yield "markdown", render_resolved(given)


def faults(name: str, text: str) -> list[str]:
    """What an attacker would have reached in an output."""
    obeyed = {repr(one) for one in set(text) - {"\n"} if unicodedata.category(one) in OBEYED}
    before = " #>|-" if name == "markdown" else ""  # The lines of a reason are its own in a terminal, and indented.
    lines = [line for line in text.split("\n") if line.lstrip(before).startswith(MARK)]
    markup = ["<img"] if name in ("html", "markdown") and "<img" in text else []
    return [*sorted(obeyed), *lines[:1], *markup]


def test_one_hostile_text_in_any_field_reaches_no_output() -> None:
    fields = 0
    for hostile in planted(whole()):
        fields += 1
        for name, text in shown(hostile):
            assert faults(name, text) == [], name
    assert fields > 300
    assert any(MARK in text for name, text in shown(next(planted(whole()))) if name == "json")


@pytest.mark.parametrize("headline", list(Headline))
def test_hostile_texts_in_all_fields_at_once(headline: Headline) -> None:
    named = set()
    for name, text in shown(everywhere(EXAMPLES[headline])):
        assert faults(name, text) == [], name
        named |= {name} if MARK in text else set()
    assert named >= {"html", "json", "markdown", "terminal"}  # Others show causes alone, or times.


def test_json_keeps_what_it_escapes() -> None:
    hostile = everywhere(EXAMPLES[Headline.WORSE])
    text = OUTPUTS["json"](Overview([hostile.lanes[0]]))
    assert msgspec.json.decode(text)["hardware"]["name"] == f"{HOSTILE}NVIDIA H200"


def test_the_command_and_its_errors_are_no_commands_to_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    report = EXAMPLES[Headline.WORSE].lanes[0].report
    assert report is not None
    results = [replace(each, case=replace(each.case, name=HOSTILE)) for each in report.results]
    save_report(tmp_path / "report.json", replace(report, hardware=everywhere(report.hardware), results=results))
    assert main(["report", "report.json"]) == ExitStatus.PASSED
    assert main(["report", "report.json", "report.json"]) == ExitStatus.USAGE_ERROR
    for text in capsys.readouterr():
        assert MARK in text
        assert faults("terminal", text) == []
