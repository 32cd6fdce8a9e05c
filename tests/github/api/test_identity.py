"""Marker and state: what was written is read, and nothing that a stranger writes is more than text."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.github.api.comment_identity import Comment, Identity, State, User, compose, digest, marker

BOT = User("github-actions[bot]", "Bot")
STATE = State(5001, 2, "a" * 40, ["nvidia-h200"], 1, digest("text"), digest("text, at length"), "0123")


def comment(body: str | None, user: User | None = BOT) -> Comment:
    return Comment(1, body, user)


def test_what_was_written_is_read() -> None:
    found = Identity("default").ours(comment(compose("default", STATE, "text\n\nmore\n")))
    assert found is not None
    assert (found.state, found.text) == (STATE, "text\n\nmore")
    assert not found.intact
    same = Identity("default").ours(comment(compose("default", STATE, "text").replace("\n", "\r\n")))
    assert same is not None
    assert same.intact


@pytest.mark.parametrize(
    ("login", "user", "ours"),
    [
        (None, BOT, True),
        (None, User("github-actions[bot]", "User"), False),
        (None, User("github-actions", "Bot"), False),
        (None, None, False),
        ("github-actions[bot]", BOT, True),
        ("guard", User("guard[bot]", "Bot"), True),
        ("guard", User("guard[bot]", "User"), False),
        ("guard", User("guard", "User"), True),
        ("guard", BOT, False),
    ],
)
def test_ours_is_by_author_too(login: str | None, user: User | None, ours: bool) -> None:
    body = compose("default", STATE, "text")
    assert (Identity("default", login).ours(comment(body, user)) is not None) is ours


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "text",
        f" {marker('default')}",
        f"> {marker('default')}",
        f"text\n{marker('default')}",
        marker("other"),
    ],
)
def test_the_marker_is_the_first_line(body: str | None) -> None:
    assert Identity("default").ours(comment(body)) is None


def state_line(value: object) -> str:
    data = json.dumps(value).encode() if not isinstance(value, bytes) else value
    return f"<!-- perfguard:state {base64.urlsafe_b64encode(data).decode()} -->"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "<!-- perfguard:state -->",
        "<!-- perfguard:state %%% -->",
        state_line([]),
        state_line({"run": 1}),
        state_line({"run": -1, "attempt": 1, "head": "x"}),
        state_line({"run": 1e30, "attempt": 1, "head": "x"}),
        state_line({"run": 10**30, "attempt": 1, "head": "x"}),
        state_line({"run": 1, "attempt": 1, "head": "x" * 201}),
        state_line(b"[" * 2_000),
        state_line(b"\xff"),
        state_line({"run": 1, "attempt": 1, "head": "x", "lanes": ["y" * 150] * 20}),
    ],
)
def test_a_broken_state_is_none(line: str) -> None:
    found = Identity("default").ours(comment(f"{marker('default')}\n{line}\n\ntext"))
    assert found is not None
    assert found.state is None
    assert found.order == (-1, -1)
    assert not found.intact


def test_a_state_with_a_field_that_is_no_more_is_read() -> None:
    line = state_line({"run": 1, "attempt": 1, "head": "x", "alarm": True, "resolved": False})
    found = Identity("default").ours(comment(f"{marker('default')}\n{line}\n\ntext"))
    assert found is not None
    assert found.order == (1, 1)


@given(st.text(max_size=200), st.binary(max_size=200))
def test_any_second_line_is_read_or_taken_for_none(text: str, data: bytes) -> None:
    for line in (text, f"<!-- perfguard:state {text} -->", state_line(data)):
        assert Identity("default").ours(comment(f"{marker('default')}\n{line}")) is not None


def test_a_state_is_small_whatever_the_lanes_are_called() -> None:
    state = State(1, 1, "a" * 40, ["é" * 150] * 20)
    body = compose("default", state, "text")
    assert len(body.encode()) < 3_000
    found = Identity("default").ours(comment(body))
    assert found is not None
    assert found.state is not None
    assert found.state.lanes == []
