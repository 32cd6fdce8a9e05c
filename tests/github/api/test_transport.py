"""One request has one limit, whatever the other side sends meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from perfguard.github.api.token import Token
from perfguard.github.api.transport import Timeouts, Transport
from perfguard.github.api.troubles import Outage

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n"


@contextlib.contextmanager
def trickling(at_once: bytes) -> Iterator[str]:
    """A server that sends `at_once`, and then a byte every 20 ms; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(at_once)
                for _ in range(500):
                    connection.sendall(b"X")
                    time.sleep(0.02)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("at_once", [b"HTTP/1.1 200 OK\r\nX-Slow: ", HEADERS], ids=["headers", "body"])
def test_a_byte_now_and_then_does_not_stretch_the_limit(at_once: bytes) -> None:
    with trickling(at_once) as url, requests.Session() as session:
        transport = Transport(url, Token("ghs_x"), Timeouts(connect=1, read=1, whole=0.3), session)
        started = time.monotonic()
        with pytest.raises(Outage, match=r"GET 127\.0\.0\.1:\d+/repos: no whole answer in 0\.3 s"):
            transport.exchange("GET", f"{url}/repos", {}, None, 10_000, abroad=False)
        assert time.monotonic() - started < 5  # the bytes alone take ten
