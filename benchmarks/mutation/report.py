"""The page of what was seen: the score by operator and by package, equivalents, and whatever survived."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.mutation.judging import MOST_TESTS
from benchmarks.rows import markdown

ARGUED = Path(__file__).with_name("equivalent.toml")
DEAD = ("survived", "not reached", "error")

Seen = Mapping[str, Any]
Key = tuple[str, str, str]


def argued(kind: str) -> dict[Key, str]:
    """Of `equivalent.toml`, by file and the line before and after: why."""
    found = tomllib.loads(ARGUED.read_text(encoding="utf-8")).get(kind, [])
    return {(each["file"], each["before"], each["after"]): each["why"] for each in found}


def key(mutant: Seen) -> Key:
    return mutant["file"], mutant["before"], mutant["after"]


def score(mutants: Sequence[Seen]) -> tuple[int, int, int, int]:
    """Killed, all, equivalent and not reached; the score is killed / (all - equivalent)."""
    killed = sum(mutant["word"] not in DEAD for mutant in mutants)
    same = sum("equivalent" in mutant for mutant in mutants)
    return killed, len(mutants), same, sum(mutant["word"] == "not reached" for mutant in mutants)


def with_arguments(seen: dict[str, Any]) -> dict[str, Any]:
    """`seen` with what is argued of its mutants, under `equivalent` and `open`. A later change of a line ends the
    argument, and leaves the record as it was."""
    arguments = {kind: argued(kind) for kind in ("equivalent", "open")}
    for mutant in seen["mutants"]:
        found = {kind: why[key(mutant)] for kind, why in arguments.items() if key(mutant) in why}
        if mutant["word"] in DEAD and found:
            for kind in arguments:
                mutant.pop(kind, None)
            mutant |= found
    return seen


def page(seen: Mapping[str, Any]) -> str:
    """Markdown."""
    mutants: list[Seen] = seen["mutants"]
    words = Counter(mutant["word"] for mutant in mutants if mutant["word"] not in DEAD)
    most = max((mutant.get("tests", 0) for mutant in mutants), default=0)
    last = f", and some of what was left then on up to {most} cases" if most > MOST_TESTS else ""
    lines = [
        "# Mutation score", "",
        f"Written by `python -m benchmarks.mutation --table` from docs/mutation.json: {len(mutants)} mutants of "
        f"`kernels/`, seed {seen['seed']}, commit {seen['commit'][:12]}, {seen['date']}, on a CPU. The score is killed "
        "/ (mutants - equivalent). Every mutant was judged by the lane `cpu`, compiled for sm_90 alone, on at most ten "
        "cases that reach its line. Survivors were judged again for all targets, with every configuration of each case "
        f"and four times as long for hard inputs{last}. What dies ended its process by an access outside of its "
        "memory, which fails a run of CI as any other word does. How mutants are made and judged: "
        "benchmarks/mutation.", "",
        *_table("all", mutants, lambda _: "all"), "",
        *_table("operator", mutants, lambda each: each["group"]), "",
        *_table("package", mutants, lambda each: _package(each["file"])), "",
        "What noticed them: " + ", ".join(f"{word} {count}" for word, count in words.most_common()) + ".", "",
        "## Not noticed", "",
    ]  # fmt: skip
    for mutant in mutants:
        if mutant["word"] in DEAD:
            why = mutant.get("equivalent")
            told = f"equivalent: {why}" if why else f"{mutant['word']}. {mutant.get('open', '')}"
            lines.append(
                f"- {mutant['file']}, {mutant['group']}: `{mutant['before']}` → `{mutant['after']}`. {told}".rstrip()
            )
    return "\n".join(lines) + "\n"


def _package(file: str) -> str:
    parts = file.split("/")
    return parts[1] if len(parts) > 2 else "kernels"


def _table(name: str, mutants: Sequence[Seen], of: Callable[[Seen], str]) -> list[str]:
    rows = []
    for value in sorted({of(mutant) for mutant in mutants}):
        killed, every, same, unreached = score([mutant for mutant in mutants if of(mutant) == value])
        share = f"{100 * killed / (every - same):.0f} %" if every > same else ""
        rows.append((value, killed, every, same, unreached, share))
    return markdown([name, "killed", "mutants", "equivalent", "not reached", "score"], rows)
