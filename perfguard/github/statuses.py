from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from perfguard.github.client import Client


class Status(Struct, frozen=True):
    """One commit status.

    Attributes:
        context: `perfguard` (the one that a branch rule requires) or `perfguard/<lane>`.
        description: counts only; what is beyond 140 characters is cut.
        link: where it leads, a full URL.
    """

    context: str
    state: Literal["success", "failure", "error", "pending"]
    description: str
    link: str = ""


def set_statuses(client: Client, sha: str, statuses: Sequence[Status]) -> list[str]:
    """Set statuses of a commit, in this order; those that stand already are left alone.

    Returns:
        What went wrong, a sentence each; never raises for trouble with GitHub.
    """
    raise NotImplementedError
