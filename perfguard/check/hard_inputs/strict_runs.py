"""Strict runs of interpreted kernels as derived inputs: the given tensors, and less that a kernel may rely on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfguard.check.hard_inputs.comparison import Outcome
from perfguard.check.hard_inputs.derivation import STRICT, Derivation
from perfguard.interpreter.running import RUNNING

_MASKED = "masked lanes without other= hold NaN, or the largest integer"
_BACKWARDS = "programs run from last to first"
_AT_ONCE = "programs run at once, the last first"


def strict_kinds() -> list[tuple[str, str]]:
    """Kinds and texts of the strict runs in which the kernels interpreted so far could differ."""
    masked = [("masked lanes", _MASKED)] if RUNNING.open_lanes and RUNNING.spans is not None else []
    orders = [("program order", text) for text in (_BACKWARDS, _AT_ONCE)] if RUNNING.several else []
    return masked + orders


def judged_strictly(derivation: Derivation, judge: Callable[[], Outcome]) -> Outcome:
    """The outcome of `judge` with kernels run as the derivation asks. A problem names the kernel's line."""
    from perfguard.interpreter.running import Strict, strictly

    text = derivation.text(STRICT)
    strict = Strict(
        poisons=(lambda _: True) if text == _MASKED else None,
        backwards=text in (_BACKWARDS, _AT_ONCE),  # Another program than usual then stores last.
        at_once=text == _AT_ONCE,
    )

    def judged_by(how: Strict) -> Outcome:
        with strictly(how):
            return judge()

    outcome = judged_by(strict)
    if not outcome.problem:
        return outcome
    if strict.poisons is None:
        noted = Strict(backwards=strict.backwards, at_once=strict.at_once, accesses=[])
        judged_by(noted)
        return _at(noted.shared(), outcome)
    lines = [*dict.fromkeys(strict.poisoned)]
    if len(lines) > 1:
        lines = [each for each in lines if judged_by(Strict(poisons=each.__eq__)).problem] or lines
    return _at(f"{', '.join(lines)} loads lanes that its mask leaves out, and uses them", outcome)


def _at(words: str, outcome: Outcome) -> Outcome:
    return replace(outcome, problem=f"{words}: {outcome.problem}") if words else outcome
