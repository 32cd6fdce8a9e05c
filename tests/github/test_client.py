"""The client: tokens, limits, outages, redirects, hosts, and answers that are none of GitHub's."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

from perfguard.github.api import client as client_module
from perfguard.github.api.client import ApiError, Client, open_client
from perfguard.model.errors import GitHubError, UsageError
from tests.github.conftest import NOW, FakeClock
from tests.github.fake import ALL_PERMISSIONS, TOKEN, FakeGitHub, sha

COMMENTS = "/issues/7/comments"
SECONDARY = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}
PRIMARY = {"message": "API rate limit exceeded"}


def listed(client: Client) -> list[Any]:
    return [comment for page in client.pages(COMMENTS, list[Any]) for comment in page]


def refusal(client: Client) -> str:
    with pytest.raises(ApiError) as error:
        listed(client)
    assert TOKEN not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("environ", [{}, {"GITHUB_TOKEN": ""}, {"GITHUB_TOKEN": " \n"}])
def test_no_token(environ: dict[str, str]) -> None:
    with pytest.raises(GitHubError, match=r"no token in GITHUB_TOKEN; .*comment.yml"):
        open_client({"GITHUB_REPOSITORY": "o/r", **environ})


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GITHUB_TOKEN", "ghs_a\nb", "GITHUB_TOKEN: holds a character"),
        ("GITHUB_REPOSITORY", "", "GITHUB_REPOSITORY=''"),
        ("GITHUB_REPOSITORY", "o/r/../x", "no owner/name"),
        ("GITHUB_REPOSITORY", "../r", "no owner/name"),
        ("GITHUB_API_URL", "github.com", "GITHUB_API_URL='github.com': no https:// address"),
        ("GITHUB_API_URL", "http://github.example.com/api/v3", "no https:// address"),
        ("GITHUB_API_URL", "http://localhost@example.com", "no https:// address"),
        ("GITHUB_API_URL", "https://[bad", "no https:// address"),
        ("GITHUB_API_URL", "https://[bad]/api/v3", "no https:// address"),
        ("GITHUB_API_URL", "https://github.com:port", "no https:// address"),
        ("GITHUB_SERVER_URL", "https://a b", "no https:// address"),
    ],
)
def test_a_wrong_variable_is_named_without_the_token(variable: str, value: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        open_client({"GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": "o/r", variable: value})
    assert said in str(error.value)
    assert "ghs_" not in str(error.value)


def test_a_missing_permission_is_named_and_not_asked_for_again(github: FakeGitHub, client: Client) -> None:
    assert TOKEN not in repr(client)
    github.data.tokens[TOKEN] = ALL_PERMISSIONS - {"pull_requests=read"}
    assert "may lack pull_requests=read: give it to the job in comment.yml" in refusal(client)
    github.data.tokens.clear()
    assert "401 Bad credentials; the token is wrong or has expired" in refusal(client)
    assert len(github.requests) == 2


RESET = int(NOW)
RETRIES: dict[str, tuple[dict[str, Any], list[float], str]] = {
    # name: fault, waits, the error (empty: the request succeeds in the end)
    "an outage": ({"times": 3, "status": 502, "body": "<html>bad gateway</html>"}, [2, 4], ""),
    "a long outage": ({"times": 9, "status": 503}, [2, 4], "GitHub has an outage, run the job again later"),
    "a dropped connection": ({"times": 2, "drops": True}, [2], ""),
    "a secondary limit": ({"status": 403, "body": SECONDARY}, [], "run the job again after 2026-11-21 10:01 UTC"),
    "a limit without words": ({"status": 429}, [], "429; run the job again after 2026-11-21 10:01 UTC"),
    "a wait that is named": ({"status": 403, "headers": {"retry-after": "7"}, "body": SECONDARY}, [7], ""),
    "a wait beyond the deadline": (
        {"times": 9, "status": 429, "headers": {"retry-after": "999999"}}, [], "before the deadline; run the job again",
    ),
    "a primary limit": (
        {"status": 403, "headers": {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(RESET + 1200)},
         "body": PRIMARY}, [], "run the job again after 2026-11-21 10:20 UTC",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RETRIES)
def test_what_may_pass_is_waited_for(github: FakeGitHub, client: Client, clock: FakeClock, what: str) -> None:
    fault, waits, said = RETRIES[what]
    github.fail(**fault)
    if said:
        assert said in refusal(client)
    else:
        assert listed(client) == []
    assert clock.slept == waits


@pytest.mark.parametrize(
    "body", ["", "{", "[1", '"x"', '{"message": 3}', "[" * 100_000, "<!DOCTYPE html><title>Sign in</title>"]
)
def test_an_answer_that_is_none_of_githubs(github: FakeGitHub, client: Client, body: str) -> None:
    github.fail(status=200, body=body)
    assert "not an answer of GitHub's API" in refusal(client)


def test_a_read_hangs(github: FakeGitHub, client: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    github.fail(times=4, hangs=0.4)
    monkeypatch.setattr(client_module, "TIMEOUT", 0.1)
    assert "timed out" in refusal(client)
    assert clock.slept == [2, 4]


def test_nobody_listens(github: FakeGitHub) -> None:
    elsewhere = open_client({**github.environ(), "GITHUB_API_URL": "http://127.0.0.1:9"})
    assert refusal(elsewhere).startswith("GET /issues/7/comments: [Errno 111] Connection refused; check that this")


def test_pages_without_end(github: FakeGitHub, client: Client) -> None:
    link = f'<{github.storage}/x>; rel="next"'  # never followed: it might lead elsewhere
    github.fail(method="GET", path=COMMENTS, times=999, headers={"Link": link})
    assert "more than 50 pages" in refusal(client)
    assert github.requests == [("GET", COMMENTS)] * 50


@pytest.mark.parametrize("status", [301, 302, 307])
@pytest.mark.parametrize("location", ["", "/repositories/1/x", "ftp://127.0.0.1/x"])
def test_no_call_is_redirected(github: FakeGitHub, client: Client, status: int, location: str) -> None:
    github.fail(status=status, headers={"Location": location})
    assert "a redirect; set GITHUB_REPOSITORY" in refusal(client)
    github.fail(status=status, headers={"Location": github.storage})
    with pytest.raises(ApiError, match="a redirect"):
        client.write("POST", f"/statuses/{sha('head')}", {"state": "success"})
    assert len(github.requests) == 2


def test_a_download_takes_no_token_to_another_host(github: FakeGitHub, client: Client) -> None:
    path = f"/actions/artifacts/{github.data.add_artifact(5001, 'perfguard-h200-1', b'zip').id}/zip"
    assert client.download(path, 3) == b"zip"  # the storage refuses a token
    with pytest.raises(ApiError, match="more than 2 bytes; refused"):
        client.download(path, 2)
    for location in ("", "file:///etc/passwd", "ftp://127.0.0.1/x"):
        github.fail(status=302, headers={"Location": location})
        with pytest.raises(ApiError, match="refused"):
            client.download(path, 3)


def test_a_write_is_repeated_unless_it_creates_a_comment(github: FakeGitHub, client: Client, clock: FakeClock) -> None:
    github.fail(method="POST", times=2, status=502)
    client.write("POST", f"/statuses/{sha('head')}", {"state": "success"})
    assert clock.slept == [2]
    github.fail(method="POST", path=COMMENTS, drops=True)
    with pytest.raises(ApiError, match="POST /issues/7/comments: "):
        client.write("POST", COMMENTS, {"body": "x"})
    client.delete("/issues/comments/1")  # gone already
    github.fail(method="DELETE", status=200, body="<html>")
    with pytest.raises(ApiError, match="not what GitHub's API answers"):
        client.delete("/issues/comments/1")
    github.fail(method="POST", path=COMMENTS, status=403, headers={"retry-after": "7"}, body=SECONDARY)
    client.write("POST", COMMENTS, {"body": "x"})  # GitHub stored nothing
    assert clock.slept == [2, 7]


def test_a_call_ends_by_its_deadline_and_all_calls_by_that_of_the_job(
    github: FakeGitHub, client: Client, clock: FakeClock
) -> None:
    github.fail(times=9, status=429, headers={"retry-after": "50"})
    assert "no answer before the deadline; run the job again after 2026-11-21 10:02 UTC" in refusal(client)
    assert clock.slept == [50, 50]  # a third would be longer than two minutes
    github.faults.clear()
    clock.now += 600
    asked = len(github.requests)
    assert "no answer before the deadline" in refusal(client)
    assert len(github.requests) == asked
    client.allow(60)
    assert listed(client) == []


def test_an_answer_that_trickles_ends_by_the_deadline(
    github: FakeGitHub, client: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.fail(status=200, body="[" + " " * 500_000 + "]")
    monkeypatch.setattr(clock, "time", itertools.count(NOW, 50.0).__next__)
    assert "no answer before the deadline" in refusal(client)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_headers_and_chunks_that_trickle_end_by_the_deadline(
    github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """A socket's timeout ends a silent answer only."""
    monkeypatch.setattr(client_module, "_CALL_SECONDS", 1.0)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(answer)
                while not ended.wait(0.05):
                    connection.sendall(b"0")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            slow = open_client({**github.environ(), "GITHUB_API_URL": f"http://127.0.0.1:{server.getsockname()[1]}"})
            assert "no answer before the deadline; run the job again after" in refusal(slow)
        finally:
            ended.set()
            thread.join()


def test_the_owner_of_the_token(github: FakeGitHub, client: Client) -> None:
    assert client.login() == "github-actions[bot]"
    github.fail(path="graphql", status=200, body={"errors": [{"message": "x"}]})
    with pytest.raises(ApiError, match="POST /graphql: not an answer"):
        client.login()


def test_credentials_of_files_are_not_used(
    github: FakeGitHub, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    path = f"/actions/artifacts/{github.data.add_artifact(5001, 'perfguard-h200-1', b'zip').id}/zip"
    assert client.download(path, 3) == b"zip"  # the API refuses another token, the storage any


def test_an_enterprise_server_with_a_ca_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with FakeGitHub("/api/v3", tls) as github:
        github.data.add_pull()
        environ = {**github.environ(), "GITHUB_API_URL": f"{github.api}/"}
        assert github.api.startswith("https://")
        assert "CERTIFICATE_VERIFY_FAILED" in (said := refusal(open_client(environ)))
        assert "REQUESTS_CA_BUNDLE" in said
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert listed(open_client(environ)) == []
        assert open_client(environ).login() == "github-actions[bot]"  # at /api/graphql
        assert github.violations == []
