"""Answers, where a base's code runs, whether the base has faults that a later commit shows on other inputs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfguard.check.all_configs import check_named
from perfguard.check.hard_inputs.search import judge_again
from perfguard.check.numerics.trial import Inputs
from perfguard.model.call import Call
from perfguard.model.records import Doubt


def ask(call: Call, doubts: Sequence[Doubt]) -> list[Doubt]:
    """Try what `doubts` tried, and nothing else, on the base's call, and judge it by the same rule.

    Returns:
        Those of `doubts` that can be tried here, in their order. `problem` is empty where the result is right, and
        otherwise says what is wrong here. A doubt cannot be tried if the call has other inputs or no such
        configuration, if its input is outside of the reference's domain or refused, or if memory is short.

    Raises:
        Exception: the device is lost, or the call as given raises.
    """
    inputs = Inputs(call).describe()
    doubts = [doubt for doubt in doubts if doubt.inputs == inputs]
    names = {doubt.name for doubt in doubts if not doubt.tried}
    configurations = check_named(call, names) if names else {}
    answers = []
    for doubt in doubts:
        if doubt.tried:
            outcome = judge_again(call, doubt)
            if not outcome.left_out:
                problem = f"{doubt.name}: {outcome.problem}" if outcome.problem else ""
                answers.append(replace(doubt, problem=problem))
        elif doubt.name in configurations:
            same_pass = [found.problem for found in configurations[doubt.name] if found.backward == doubt.backward]
            answers.append(replace(doubt, problem=same_pass[0] if same_pass else ""))
    return answers
