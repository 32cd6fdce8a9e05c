"""What goes wrong, on command."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """Something that happens to requests that match, instead of an answer or beside it.

    Attributes:
        method, path: which requests: `path` is searched for, without the base.
        token: only requests of this token.
        times: how often.
        skip: how many matching requests pass before.
        status, headers, body: the answer; status 0 leaves the real one, with `headers` over its own.
        stored: the request takes effect before the answer is spoilt.
        before: runs ahead of everything, e.g. waits for another process.
        after: runs when the request has taken effect, ahead of the answer.
        hangs: seconds that the answer takes longer.
        drops: the connection is closed in place of an answer.
    """

    method: str = ".*"
    path: str = ""
    token: str = ""
    times: int = 1
    skip: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    stored: bool = False
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    hangs: float = 0.0
    drops: bool = False
    used: int = 0

    def takes(self, method: str, path: str, token: str) -> bool:
        """Whether this request is one of those; counts it."""
        if not re.fullmatch(self.method, method) or not re.search(self.path, path) or self.used >= self.times:
            return False
        if self.token and self.token != token:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.used += 1
        return True

    @property
    def answers(self) -> bool:
        """It spoils the answer, not only its time."""
        return bool(self.status) or self.drops
