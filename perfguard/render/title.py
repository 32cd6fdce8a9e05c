"""The headline of an overview as text with numbers, but without names."""

from __future__ import annotations

from perfguard.model.records import Word
from perfguard.model.units import counted
from perfguard.render.findings import INCONCLUSIVE, NOT_GUARDED
from perfguard.render.overview import SPARED, Headline, Overview
from perfguard.render.words import NOT_TIMED

ACTION = " — action needed"


def title_of(overview: Overview) -> str:
    """The headline as text, with the number of edits that let worse readings pass."""
    text = _title(overview)
    if not overview.loosened or overview.headline is Headline.ACCEPTED:  # Its text counts the edits.
        return text
    edits = f", {counted(overview.loosened, 'baseline edit')} let worse pass than before"
    return f"{text.removesuffix(ACTION)}{edits}{ACTION if text.endswith(ACTION) else ''}"


def _title(overview: Overview) -> str:
    """The headline as text, without baseline edits."""
    lanes, reported = (counted(number, "lane") for number in (len(overview.lanes), overview.reported))
    match overview.headline:
        case Headline.WRONG | Headline.WORSE:
            return _failing(overview) + ACTION
        case Headline.INCOMPLETE:
            return f"incomplete: {_incomplete(overview)}"
        case Headline.INCONCLUSIVE:
            those = sum(lane.is_inconclusive for lane in overview.lanes)
            on_lanes = f" on {those} of {lanes}" if len(overview.lanes) > 1 else ""
            return f"inconclusive{on_lanes}: {overview.undecided}: {overview.undecided.kind}"
        case Headline.UNVERIFIED:
            return f"not verified: {_unverified(overview)}{ACTION}"
        case Headline.UNDECIDED:
            if overview.undecided.findings:
                return f"undecided: {overview.undecided}: {overview.undecided.kind}"
            return f"undecided: {counted(overview.total(*INCONCLUSIVE), 'case')} that could not be judged"
        case Headline.NO_BASELINE:
            return f"not guarded: {counted(overview.total(*NOT_GUARDED), 'case')} without a comparable baseline"
        case Headline.ACCEPTED:
            accepted = sum(len(lane.accepted) for lane in overview.lanes)
            return f"accepted: {counted(accepted, 'finding')} covered by this change's baseline edits"
        case Headline.FASTER:
            return f"{counted(overview.total(Word.FASTER), 'case')} faster, none worse"
        case Headline.UNCHANGED if all(lane.spared for lane in overview.lanes):
            return SPARED
        case Headline.UNCHANGED:
            untimed = sum(lane.exact_only for lane in overview.lanes)
            some = "" if untimed == overview.reported else f"{untimed} of them "
            cases, better = sum(len(lane.cases) for lane in overview.lanes), overview.total(Word.BETTER)
            text = f"{'nothing worse' if better else 'no change'} in {counted(cases, 'case')} on {reported}"
            text += f", {better} changed for the better" if better else ""
            other = next((str(lane.other_code) for lane in overview.lanes if lane.other_code.moved), "")
            return ", ".join(filter(None, [text, f"{some}{NOT_TIMED}" if untimed else "", other]))


def _failing(overview: Overview) -> str:
    words = (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED, Word.FASTER)
    counts = [(overview.total(word), word.value.lower()) for word in words]
    counts.insert(-1, (overview.absent, "not measured"))
    (count, word), *rest = [(count, word) for count, word in counts if count]
    texts = [f"{counted(count, 'case')} {word}", *(f"{count} {word}" for count, word in rest)]
    if overview.silent:
        texts.append(f"{counted(overview.silent, 'lane')} without a result")
    if overview.undecided.findings:
        texts.append(str(overview.undecided))
    return ", ".join(texts)


def _incomplete(overview: Overview) -> str:
    silent, broken = overview.silent, overview.total(Word.BROKEN)
    cut = sum(lane.report is not None and not lane.report.complete for lane in overview.lanes)
    parts = [
        "" if overview.lanes else "no lane is expected",
        f"{silent} of {counted(len(overview.lanes), 'lane')} without a result" if silent else "",
        f"{counted(broken, 'case')} broken" if broken else "",
        f"{counted(overview.absent, 'case')} not measured" if overview.absent else "",
        f"{counted(cut, 'run')} cut short" if cut else "",
        overview.unread,
    ]
    return ", ".join(filter(None, parts))


def _unverified(overview: Overview) -> str:
    others = sum(len(lane.other_conditions) for lane in overview.lanes)
    unpaired = sum(len(lane.unpaired) for lane in overview.lanes)
    parts = [
        f"{counted(others, 'case')} under other conditions than recorded" if others else "",
        f"{counted(unpaired, 'case')} in question without process pairs" if unpaired else "",
    ]
    return ", ".join(filter(None, parts))
