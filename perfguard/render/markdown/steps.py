"""Commands to copy: reproduce, compare, accept, record. There are none for node ids that are not safe to paste."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from perfguard.model.records import Word
from perfguard.render.escaping import fenced, is_plain
from perfguard.render.findings import NOT_GUARDED, Cause
from perfguard.render.overview import Overview
from perfguard.render.words import CommandPrefix, accept_command, command_prefix, compare_command, reproduce_command

MOST_REPRODUCED, MOST_ACCEPTED, MOST_RECORDED = 3, 2, 2  # Commands of each kind, which share a screen with the causes.
TO_ACCEPT = (Word.SLOWER, Word.CHANGED)  # The other words need a recording on that hardware.


def next_steps(overview: Overview) -> str:
    """The commands as a block to copy; empty if no action is needed."""
    lines = commands_of(overview)
    doubt = bool(overview.causes or overview.silent)
    title = f"**Next steps**{' (in doubt, or where a lane has no result: re-run the lane)' if doubt else ''}"
    return "\n\n".join([title, *([fenced(lines, "sh")] if lines else [])]) if lines or doubt else ""


def commands_of(overview: Overview) -> list[str]:
    """A few commands for the worst causes, by their numbers in the table, each kind after a line that labels it."""
    causes = overview.causes
    lanes = {each.name: command_prefix(each.report) if each.report else CommandPrefix() for each in overview.lanes}
    reproduce: dict[str, list[int]] = {}  # Command -> the causes of which it runs the worst case.
    for number, cause in enumerate(causes, 1):
        if is_plain(nodeid := cause.worst.result.case.nodeid):
            reproduce.setdefault(reproduce_command(nodeid, lanes[cause.worst.lane]), []).append(number)
    shown = [*reproduce][:MOST_REPRODUCED]
    numbers = ", ".join(str(number) for command in shown for number in reproduce[command])
    shared = {name for name, count in Counter(name for cause in causes for name in cause.lanes).items() if count > 1}
    accept = [command for cause in causes for command in _accept(overview, cause, shared)]
    accept = list(dict.fromkeys(accept))[:MOST_ACCEPTED]
    parts = [
        (f"# reproduce the worst case of {numbers} on its hardware", shown),
        ("# measure it beside its merge base by yourself", _compare(causes)),
        ("# accept what was measured, then commit it for the code owners of baselines/", accept),
        ("# record on that hardware what is not guarded, then commit it", [] if causes else _record(overview, lanes)),
    ]
    return [line for title, commands in parts if commands for line in (title, *commands)]


def _compare(causes: Sequence[Cause]) -> list[str]:
    """The comparison of the slowest case. Observed tests are left out, since `perfguard compare` does not time them."""
    slower = [
        finding.result.case.nodeid
        for cause in causes
        for finding in cause.findings
        if finding.verdict.word is Word.SLOWER and not finding.cause and is_plain(finding.result.case.nodeid)
    ]
    return [compare_command(nodeid) for nodeid in slower[:1]]


def _accept(overview: Overview, cause: Cause, shared: set[str]) -> list[str]:
    """Commands that accept one cause from the run that measured, or from the lanes' files if the run is unknown.

    Args:
        shared: lanes with more than one cause, of which the command chooses this one.
    """
    to_accept = {each.lane for each in cause.findings if each.verdict.word in TO_ACCEPT and each.verdict.storable}
    run = re.search(r"/actions/runs/(\d+)(?:/|$)", overview.run_url, re.ASCII)
    commands = []
    for lane in overview.lanes:
        report = lane.report
        if lane.name not in to_accept or report is None or not _is_word(lane.name):
            continue
        chosen = _choice(cause) if lane.name in shared else ""
        if run:
            commands.append(f"perfguard accept --lane {lane.name} --run {run[1]}{chosen} --reason 'why'")
        elif _is_word(report.hardware.slug):
            commands.append(f"perfguard accept --from report-{report.hardware.slug}.json{chosen} --reason 'why'")
    return commands


def _choice(cause: Cause) -> str:
    """` -k 'test_a or test_b'` for the tests of a cause; empty if there are too many to name."""
    names = dict.fromkeys(each.result.case.nodeid.partition("[")[0].rpartition("::")[2] for each in cause.findings)
    named = all(re.fullmatch(r"\w{1,60}", name, re.ASCII) for name in names) and len(names) <= MOST_REPRODUCED
    return f" -k {shlex.quote(' or '.join(names))}" if named else ""


def _record(overview: Overview, lanes: dict[str, CommandPrefix]) -> list[str]:
    words: dict[CommandPrefix, set[Word]] = {}
    for each in overview.findings(*NOT_GUARDED):
        words.setdefault(lanes[each.lane], set()).add(each.verdict.word)
    return [accept_command(words[by], by=by) for by in sorted(words)][:MOST_RECORDED]


def _is_word(name: str) -> bool:
    return is_plain(name) and re.fullmatch(r"[\w.-]+", name) is not None
