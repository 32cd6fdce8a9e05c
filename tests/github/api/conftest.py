"""The fake GitHub with one pull request of a fork, a client of it, and a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfguard.github.api.client import Client, open_client
from perfguard.github.api.comment_identity import State
from perfguard.github.api.pulls import Pull
from perfguard.github.api.retries import Clock
from perfguard.github.api.transport import Timeouts
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import TOKEN, sha

NOW = 1_795_255_200.0  # 2026-11-21 10:00 UTC


@dataclass
class FakeClock:
    """Time that passes only while somebody sleeps, who wakes at once."""

    time: float = NOW
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.slept.append(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.time, elapsed=lambda: self.time, sleep=self.sleep, jitter=lambda: 0.0)


@pytest.fixture(autouse=True)
def _no_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home of its own, and no proxy: loopback only."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NETRC", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def _sockets() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        yield fake


@pytest.fixture
def github(_sockets: FakeGitHub) -> Iterator[FakeGitHub]:
    _sockets.reset()
    _sockets.world.add_pull()
    yield _sockets
    assert _sockets.violations == []


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_(github: FakeGitHub, clock: FakeClock) -> Callable[..., Client]:
    """A client; `token=…` of another, `read=…` seconds of patience with the socket."""

    def opened(token: str = TOKEN, read: float = 20.0) -> Client:
        return open_client(github.environ(token), clock.clock, Timeouts(read=read))

    return opened


@pytest.fixture
def client(open_: Callable[..., Client]) -> Client:
    return open_()


@pytest.fixture
def pull() -> Pull:
    return Pull(number=7, base_sha=sha("base"), head_sha=sha("head"))


@pytest.fixture
def state() -> State:
    return State(run=5001, attempt=1, head=sha("head"), lanes=["nvidia-h200"])
