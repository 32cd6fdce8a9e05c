from __future__ import annotations

from msgspec import Struct


class State(Struct, frozen=True):
    """What a comment says of itself in its second line. Anyone with write access can edit it: hostile.

    The caller gives run, attempt, head and lanes; the rest is filled in when it is written.

    Attributes:
        run, attempt: the workflow run that measured; a newer pair is never overwritten.
        head: commit that was measured.
        lanes: that are shown.
        alarm: somebody has to act.
        tier: which of the bodies was taken, 1 the largest.
        hash: of the body.
        nonce: another one for each write, so that a read-back tells whose write it was.
    """

    run: int
    attempt: int
    head: str
    lanes: list[str] = []
    alarm: bool = False
    tier: int = 0
    hash: str = ""
    nonce: str = ""
