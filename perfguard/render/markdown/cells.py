"""Table cells. Our own text is used as it is; possibly untrusted text is escaped."""

from __future__ import annotations

import re

from perfguard.model.records import Report, Value, Verdict
from perfguard.model.units import Unit, counted, format_change, format_value
from perfguard.render.escaping import code
from perfguard.render.survey import MOVED
from perfguard.render.words import change_text, interval_text, moved

NAME = 80  # characters of a lane's, device's or metric's name in a table
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=\S)")


def text(words: str, most: int = 200) -> str:
    """Untrusted text, escaped; empty for an empty text."""
    return code(words, most) if words else ""


def value(of: Value | None, unit: Unit, nothing: str = "") -> str:
    """A reading's value in its unit."""
    if of is None:
        return nothing
    shown = format_value(of, unit)
    return code(shown) if isinstance(of, str | list | dict) else together(shown)


def together(quantity: str) -> str:
    """A quantity with non-breaking spaces, so that a narrow column keeps number and unit together."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", quantity)


def before_and_after(verdict: Verdict) -> tuple[str, str]:
    """Value before and after; for lists and parts, their size before and their difference."""
    before, after = verdict.before, verdict.after
    if isinstance(before, list) and isinstance(after, list):
        return f"{len(before)} entries", code(change_text(before, after, verdict.unit))
    if isinstance(before, dict) and isinstance(after, dict):
        return counted(len(before), "part"), code(change_text(before, after, verdict.unit))
    return value(before, verdict.unit), value(after, verdict.unit)


def change(verdict: Verdict) -> str:
    """The size of a change: in words if the verdict reports a change, else as a plain difference."""
    if verdict.unit is Unit.TEXT:
        return "different" if verdict.word in MOVED else ""
    if verdict.word in MOVED:
        return together(moved(verdict))
    if verdict.ratio is None:
        return ""
    interval = interval_text(verdict)
    return together(f"{format_change(verdict.ratio)}{f' ({interval})' if interval else ''}")


def device(report: Report) -> str:
    """GPU, driver, toolkit and clock notes."""
    tools = report.toolchain
    parts = [report.hardware.name, f"driver {tools.driver}" if tools.driver else "", tools.toolkit or ""]
    clocks = [condition.clock_mhz for condition in report.conditions if condition.clock_mhz]
    if clocks:
        parts.append(f"{clocks[-1]} MHz")
    throttled = sorted({reason for condition in report.conditions for reason in condition.throttle_reasons})
    if throttled:
        parts.append(f"throttled: {', '.join(throttled)}")
    return code(" · ".join(part for part in parts if part), NAME)
