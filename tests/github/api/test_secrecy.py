"""The token is in no output: not in a failing test's, with all variables shown and debug logging on."""

from __future__ import annotations

import copy
import pickle

import pytest

from perfguard.github.api.token import read_token
from perfguard.model.errors import UsageError
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import TOKEN

FAILING = """
import logging
import os
import pytest
from perfguard.model.config import Settings
from perfguard.github.api.retries import Clock
from perfguard.github.api.token import Environ
from perfguard.github.api.pulls import Pull
from perfguard.github.api.comment_identity import State
from perfguard.github.api.client import open_client
from perfguard.github.api.comments import post_comment
from perfguard.github.api.transport import Timeouts
from perfguard.github.post.post_job import Job

logging.basicConfig(level=logging.DEBUG)
SHA = "0" * 40


@pytest.fixture
def client():
    return open_client(os.environ, Clock(sleep=lambda seconds: None), Timeouts(read=0.1))


@pytest.mark.parametrize("path", ["dropped", "hangs", "denied", "page"])
def test_raises(client, path):
    client.get("/repos/o/r/" + path, int)


def test_posts(client):
    posted = post_comment(client, Pull(7, SHA, SHA), ["text"], wants=True, state=State(1, 1, SHA))
    local = (client, client.__dict__, client._transport.__dict__)
    assert posted is None


def test_has_a_job():
    job = Job(Settings(), Environ(os.environ))
    environ = job.environ
    assert environ is None


def test_opens(monkeypatch):
    monkeypatch.setenv("GITHUB_API_URL", "nowhere")
    open_client(os.environ)
"""


def test_row_47_variables_and_debug_log_of_failing_tests_hold_no_token(
    github: FakeGitHub, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in github.environ().items():
        monkeypatch.setenv(name, value)
    github.fail(path="/dropped", times=9, drops=True)
    github.fail(path="/hangs", times=9, status=200, hangs=0.3)
    github.fail(path="/denied", status=401, body={"message": f"Bad credentials: {TOKEN}"})
    github.fail(path="/page", status=200, body=f"<html>Authorization: Bearer {TOKEN}", headers={"X": TOKEN})
    pytester.makepyfile(FAILING)
    done = pytester.runpytest_subprocess(
        "-l", "-vv", "--tb=long", "--log-level=DEBUG", "-p", "no:cacheprovider", "-p", "no:xdist"
    )
    output = done.stdout.str() + done.stderr.str()
    done.assert_outcomes(failed=7)
    for shown in ("posted     = Posted(", "DEBUG    urllib3", "Bad credentials: ***", "no answer in 0.1 s"):
        assert shown in output
    assert TOKEN not in output


def test_a_token_prints_as_stars_and_is_not_written_anywhere() -> None:
    token = read_token({"GITHUB_TOKEN": f" {TOKEN}\n"})
    assert f"{token} {token!r} {[token]}" == "*** *** [***]"
    assert token.scrub(f"a {TOKEN} b") == "a *** b"
    with pytest.raises(TypeError, match="not written anywhere"):
        pickle.dumps(token)
    with pytest.raises(TypeError, match="not written anywhere"):
        copy.copy(token)
    assert not hasattr(token, "__dict__")


def test_a_token_of_several_lines_is_refused_without_it() -> None:
    with pytest.raises(UsageError) as error:
        read_token({"GITHUB_TOKEN": "ghs_first\r\nX-Evil: 1"})
    assert "ghs_first" not in str(error.value)
