"""Every form says the same counts of the same words, and the statuses and exit statuses agree with them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from perfguard.config import Settings
from perfguard.errors import ExitStatus
from perfguard.judge import is_inconclusive
from perfguard.judge.pairs import PairVerdict
from perfguard.overview import Headline, LaneView, Overview
from perfguard.posting.telling import exit_status, is_resolved, may_be_eased, statuses, wants_comment
from perfguard.records import CaseResult, Report, Verdict, Word
from perfguard.render.html import render_html
from perfguard.render.junit import render_junit
from perfguard.render.markdown import render_markdown
from perfguard.render.survey import survey
from perfguard.render.terminal import render_summary
from perfguard.render.words import tally, why
from tests.render.examples import EXAMPLES, FINE, LAUNCHES, SLOWER, UNPAIRED, lane, overview, result

US = SLOWER.unit
FINAL = [word for word in Word if word not in (Word.SUSPECT, Word.STALE)]
COUNTS = Counter({word: place + 2 for place, word in enumerate(FINAL)} | {Word.STALE: 3})


def every_word() -> LaneView:
    """A lane with another number of cases for each word; those in question make up a part of its times."""
    cases = [
        result(
            f"{word}_{number}",
            Verdict(word, "device_time_us", "NOISY: …", before=61.2, after=62.0, unit=US, ratio=1.013),
            us=None if word in (Word.WRONG, Word.BROKEN) else 62.0,
        )
        for word in FINAL
        for number in range(COUNTS[word])
    ]
    view = lane("nvidia-h200", *cases)
    assert view.report is not None
    gone = [Verdict(Word.STALE, reason="gone", suite="norms", case=f"gone[{number}]/forward") for number in range(3)]
    gone.append(Verdict(Word.RENAMED, reason="now", suite="norms", case="old/forward"))  # counts as the new one does
    return msgspec.structs.replace(view, report=msgspec.structs.replace(view.report, stale=gone))


def report_of(view: LaneView) -> Report:
    assert view.report is not None
    return view.report


def test_every_form_says_the_same_counts_of_the_same_words() -> None:
    view = every_word()
    whole, told = overview(view), tally(COUNTS)
    assert survey(whole).lanes[0].counts == COUNTS

    terminal = [line.text for line in render_summary(report_of(view)).lines]
    assert terminal[1].startswith(f"{told}; ")
    undecided = survey(whole).undecided
    assert len(undecided.findings) == COUNTS[Word.UNRESOLVED]
    assert any(line.startswith(f"UNRESOLVED  {undecided}: ") for line in terminal)

    markdown = render_markdown(whole)[0]
    header, row = (re.split(r" ?\| ?", line) for line in markdown.splitlines() if re.match(r"\| (Lane|<code>)", line[:9]))[:2] \
        if False else _lane_table(markdown)
    assert {word: int(row[header.index(word)]) for word in COUNTS} == COUNTS

    suite = ET.fromstring(render_junit(whole))[0]
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["verdicts"] == told
    assert properties["undecided"] == str(undecided)
    kinds = Counter(child.get("type") for child in suite.iter() if child.get("type"))
    silent = (Word.FASTER, Word.UNCHANGED, Word.PASS, Word.STALE)
    assert kinds == {word.value: count for word, count in COUNTS.items() if word not in silent}

    page = render_html(whole)
    data = json.loads(page.split('id="data">')[1].split("</script>")[0]) if 'id="data">' in page else None
    assert data is not None
    assert Counter(case["word"] for case in data["cases"]) == COUNTS - Counter({Word.STALE: 3})

    title = survey(whole).title
    words = [f"{COUNTS[word]} {word.lower()}" for word in (Word.BROKEN, Word.SLOWER, Word.CHANGED, Word.FASTER)]
    assert title.startswith(f"{COUNTS[Word.WRONG]} cases wrong, ")
    assert all(f", {text}" in title for text in [*words, str(undecided)])
    assert {status.description for status in statuses(whole, strict=False)} == {title}
    assert title in markdown.splitlines()[0]
