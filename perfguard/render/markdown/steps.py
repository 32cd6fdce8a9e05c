"""Commands to copy: reproduce, compare, accept, record. Node ids that are not safe to paste get none."""

from __future__ import annotations

from collections.abc import Iterable

from perfguard.model.records import Word
from perfguard.render.escaping import fenced, is_plain
from perfguard.render.markdown.tables import Bounds
from perfguard.render.survey import NOT_GUARDED, Finding, Survey
from perfguard.render.words import accept_command, compare_command, lane_of, reproduce_command

MOST_COMMANDS = 3
TO_ACCEPT = (Word.SLOWER, Word.CHANGED)  # the others need a recording with several sessions


def next_steps(found: Survey, bounds: Bounds) -> str:
    """Commands for the worst findings; empty if nobody has to act. A few lines at most, independent of `bounds`."""
    urgent = found.findings(Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED)
    parts = [
        ("# reproduce on that hardware", _reproduce(found, urgent)),
        (
            "# measure it beside its merge base by yourself",
            [compare_command(nodeid) for nodeid in _ids(urgent, Word.SLOWER)][:1],
        ),
        ("# accept what was measured, then commit it for the code owners of baselines/", _accept(found)),
        ("# record on that hardware what is not guarded, then commit it", _record(found)),
    ]
    lines = [line for title, commands in parts if commands for line in (title, *commands[:MOST_COMMANDS])]
    silent = found.reported < len(found.lanes)
    blocks = [fenced(lines, "sh")] if lines else []
    if silent or urgent:
        blocks.append("In doubt, or where a lane has no result: re-run the lane.")
    return "\n\n".join(["**Next steps**", *blocks]) if blocks else ""


def _reproduce(found: Survey, urgent: Iterable[Finding]) -> list[str]:
    """One command for each test, as its lane measured it."""
    lanes = _lanes(found)
    named = ((each.result.case.nodeid, lanes[each.lane]) for each in urgent)
    return [reproduce_command(nodeid, lane) for nodeid, lane in dict.fromkeys(named) if is_plain(nodeid)]


def _lanes(found: Survey) -> dict[str, str]:
    """Lane -> the lane option for commands that reproduce it; empty for timed lanes."""
    own = {each.lane.name: lane_of(each.lane.report) if each.lane.report else "" for each in found.lanes}
    return {name: lane if is_plain(lane) else "" for name, lane in own.items()}


def _ids(findings: Iterable[Finding], *words: Word) -> list[str]:
    """Node ids of the findings, each once."""
    ids = [each.result.case.nodeid for each in findings if not words or each.verdict.word in words]
    return [nodeid for nodeid in dict.fromkeys(ids) if is_plain(nodeid)]


def _accept(found: Survey) -> list[str]:
    """Commands that accept from the run that measured, or from the lanes' files if the run is unknown."""
    run = _run_id(found.overview.run_url)
    commands = []
    for lane in found.lanes:
        name, report = lane.lane.name, lane.lane.report
        to_accept = any(each.verdict.word in TO_ACCEPT and each.verdict.storable for each in lane.findings)
        if report is None or not _is_word(name) or not to_accept:
            continue
        if run:
            commands.append(f"perfguard accept --lane {name} --run {run} --reason 'why'")
        elif _is_word(report.hardware.slug):
            commands.append(f"perfguard accept --from report-{report.hardware.slug}.json --reason 'why'")
    return commands


def _record(found: Survey) -> list[str]:
    lanes = _lanes(found)
    words: dict[str, set[Word]] = {}
    for each in found.findings(*NOT_GUARDED):
        words.setdefault(lanes[each.lane], set()).add(each.verdict.word)
    return [accept_command(words[lane], lane=lane) for lane in sorted(words)]


def _is_word(name: str) -> bool:
    return is_plain(name) and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _run_id(url: str) -> str:
    """The number in `…/actions/runs/123`; empty if there is none."""
    digits = url.partition("/actions/runs/")[2].partition("/")[0]
    return digits if digits.isdecimal() and digits.isascii() else ""
