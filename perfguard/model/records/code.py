"""Readings of a call's kernels: fingerprints of their code, and their configurations."""

from __future__ import annotations

import re

from perfguard.model.records.case import Parts, Reading, Verdict, Word

_KERNEL = re.compile(r"[/@]")  # In the name of a part, these follow the kernel.

#: The fingerprint of a call's kernels: kernel -> `<hash of its source>-<hash of its first IR>`.
CODE = "code"
#: The constants and options of a call's launches: "`kernel`: NAME" -> value.
CONFIGURATION = "configuration"


def same_code(one: str, other: str) -> bool:
    """Whether two fingerprints are of equal code. One equal half is enough: an upgrade of Triton changes the IR, and
    renaming variables changes the source."""
    return any(a and a == b for a, b in zip(one.split("-"), other.split("-"), strict=False))


def same_parts(one: Parts, other: Parts) -> bool:
    """Whether two readings of CODE are of the same kernels with equal code."""
    return one.keys() == other.keys() and all(same_code(str(one[kernel]), str(other[kernel])) for kernel in one)


def kernel_of(part: str) -> str:
    """The kernel of a part: `rows` for `rows/2` and `rows@1`."""
    return _KERNEL.split(part, maxsplit=1)[0]


def shows_other_code(reading: Reading, verdict: Verdict) -> bool:
    """Whether kernels have other code than recorded, which fails no case; UNCHANGED ones have the base's code."""
    before, after = verdict.before, reading.value
    if (
        verdict.word is Word.UNCHANGED
        or reading.metric != CODE
        or not isinstance(before, dict)
        or not isinstance(after, dict)
    ):
        return False
    return not same_parts(before, after)
