"""Readings of a call's kernels: the fingerprints of their code, and their configurations."""

from __future__ import annotations

import re

from perfguard.model.records.case import Parts, Reading, Verdict, Word

_KERNEL = re.compile(r"[/@]")  # of parts: between a kernel and its second specialisation, or its configuration

#: The fingerprint of a call's kernels: kernel -> `<hash of its source>-<hash of its first IR>`.
CODE = "code"
#: Constants and options of a call's launches: "`kernel`: NAME" -> value.
CONFIGURATION = "configuration"


def same_code(one: str, other: str) -> bool:
    """Whether two fingerprints are of equal code. One half is enough: the IR differs after an upgrade of Triton, and
    the source after a renaming of variables."""
    return any(a and a == b for a, b in zip(one.split("-"), other.split("-"), strict=False))


def same_parts(one: Parts, other: Parts) -> bool:
    """Whether two readings of CODE are of the same kernels with equal code."""
    return one.keys() == other.keys() and all(same_code(str(one[kernel]), str(other[kernel])) for kernel in one)


def kernel_of(part: str) -> str:
    """The kernel that a part is about: `rows` of `rows/2` and of `rows@1`."""
    return _KERNEL.split(part, maxsplit=1)[0]


def shows_other_code(reading: Reading, verdict: Verdict) -> bool:
    """Whether kernels are not those of the record, nor UNCHANGED, as the base's are by other names. It never fails."""
    before, after = verdict.before, reading.value
    if (
        verdict.word is Word.UNCHANGED
        or reading.metric != CODE
        or not isinstance(before, dict)
        or not isinstance(after, dict)
    ):
        return False
    return not same_parts(before, after)
