"""Commands to copy: reproduce, compare, accept, record. There are none for node ids that are not safe to paste."""

from __future__ import annotations

import re

from perfguard.model.records import Word
from perfguard.render.escaping import fenced, is_plain
from perfguard.render.findings import NOT_GUARDED
from perfguard.render.overview import Overview
from perfguard.render.words import CommandPrefix, accept_command, command_prefix, compare_command, reproduce_command

MOST_COMMANDS = 3
TO_ACCEPT = (Word.SLOWER, Word.CHANGED)  # The other words need a recording on that hardware.


def next_steps(overview: Overview) -> str:
    """A few commands for the worst findings; empty if no action is needed."""
    urgent = [
        each
        for each in overview.findings(Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED)
        if is_plain(each.result.case.nodeid)
    ]
    lanes = {each.name: command_prefix(each.report) if each.report else CommandPrefix() for each in overview.lanes}
    # Observed tests are left out, since `perfguard compare` does not time them.
    slower = [each.result.case.nodeid for each in urgent if each.verdict.word is Word.SLOWER and not each.grouped]
    parts = [
        (
            "# reproduce on that hardware",
            [reproduce_command(each.result.case.nodeid, lanes[each.lane]) for each in urgent],
        ),
        ("# measure it beside its merge base by yourself", [compare_command(nodeid) for nodeid in slower[:1]]),
        ("# accept what was measured, then commit it for the code owners of baselines/", _accept(overview)),
        ("# record on that hardware what is not guarded, then commit it", _record(overview, lanes)),
    ]
    lines = [
        line
        for title, commands in parts
        if commands
        for line in (title, *list(dict.fromkeys(commands))[:MOST_COMMANDS])
    ]
    blocks = [fenced(lines, "sh")] if lines else []
    if overview.reported < len(overview.lanes) or overview.findings(Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED):
        blocks.append("In doubt, or where a lane has no result: re-run the lane.")
    return "\n\n".join(["**Next steps**", *blocks]) if blocks else ""


def _accept(overview: Overview) -> list[str]:
    """Commands that accept from the run that measured, or from the lanes' files if the run is unknown."""
    run = re.search(r"/actions/runs/(\d+)(?:/|$)", overview.run_url, re.ASCII)
    commands = []
    for lane in overview.lanes:
        report = lane.report
        to_accept = any(each.verdict.word in TO_ACCEPT and each.verdict.storable for each in lane.findings)
        if report is None or not _is_word(lane.name) or not to_accept:
            continue
        if run:
            commands.append(f"perfguard accept --lane {lane.name} --run {run[1]} --reason 'why'")
        elif _is_word(report.hardware.slug):
            commands.append(f"perfguard accept --from report-{report.hardware.slug}.json --reason 'why'")
    return commands


def _record(overview: Overview, lanes: dict[str, CommandPrefix]) -> list[str]:
    words: dict[CommandPrefix, set[Word]] = {}
    for each in overview.findings(*NOT_GUARDED):
        words.setdefault(lanes[each.lane], set()).add(each.verdict.word)
    return [accept_command(words[by], by=by) for by in sorted(words)]


def _is_word(name: str) -> bool:
    return is_plain(name) and re.fullmatch(r"[\w.-]+", name) is not None
