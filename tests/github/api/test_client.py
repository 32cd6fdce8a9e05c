"""The rows of the acceptance table that are about tokens, limits, outages, redirects and hosts."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from perfguard.github.api.artifacts import fetch_artifacts
from perfguard.github.api.client import Client, open_client
from perfguard.github.api.comment_identity import State
from perfguard.github.api.comments import Action, post_comment
from perfguard.github.api.pulls import Pull
from perfguard.github.api.runs import fetch_run
from perfguard.github.api.statuses import Status, set_statuses
from perfguard.github.api.troubles import NoToken
from perfguard.model.errors import GitHubError, UsageError
from tests.github.api.conftest import NOW, FakeClock
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import ALL_PERMISSIONS, TOKEN, Repository, sha

RED = "### perfguard: 1 case slower"
COMMENTS = "/issues/7/comments$"
SECONDARY = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}


@pytest.mark.parametrize("environ", [{}, {"GITHUB_TOKEN": ""}, {"GITHUB_TOKEN": " \n"}])
def test_row_01_no_token(environ: dict[str, str]) -> None:
    with pytest.raises(NoToken, match=r"no token in GITHUB_TOKEN; .*comment.yml"):
        open_client({"GITHUB_REPOSITORY": "o/r", **environ})


def test_row_02_a_read_only_token(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    github.world.tokens[TOKEN] = frozenset({"pull_requests=read", "contents=read"})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "lacks pull_requests=write" in posted.reason
    assert "comment.yml" in posted.reason
    assert len(github.writes) == 1


def test_row_03_a_scope_is_missing(github: FakeGitHub, client: Client) -> None:
    github.world.tokens[TOKEN] = ALL_PERMISSIONS - {"statuses=write"}
    problems = set_statuses(client, sha("head"), [Status("perfguard", "success", "ok")])
    assert len(problems) == 1
    assert "lacks statuses=write" in problems[0]
    assert len(github.writes) == 1


def test_row_03_the_token_expires_midway(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    github.fail(path="/pulls/7$", before=github.world.tokens.clear)
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "401 Bad credentials" in posted.reason
    assert github.requests[-1] == ("GET", "/repos/o/r/pulls/7")
    assert clock.slept == []


def test_row_19_the_primary_limit_resets_too_late(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) + 1200)}
    github.fail(path=COMMENTS, times=9, status=403, headers=headers, body={"message": "API rate limit exceeded"})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "run the job again after 2026-11-21 10:20 UTC" in posted.reason
    assert clock.slept == []


def test_the_primary_limit_resets_soon(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) + 30)}
    github.fail(path=COMMENTS, status=429, headers=headers, body={"message": "API rate limit exceeded"})
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    assert clock.slept[0] == 31


def test_a_reset_that_has_passed_is_not_waited_for(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) - 30)}
    github.fail(path=COMMENTS, times=9, status=403, headers=headers, body={"message": "API rate limit exceeded"})
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.FAILED
    assert clock.slept == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_row_20_a_secondary_limit_without_a_time(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State, method: str
) -> None:
    headers = {"x-ratelimit-remaining": "4771"}
    github.fail(method=method, path=COMMENTS, times=2, status=403, headers=headers, body=SECONDARY)
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    assert [seconds for seconds in clock.slept if seconds >= 10] == [60, 120]
    assert len(github.world.comments) == 1


def test_row_20_a_secondary_limit_that_stays(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    github.fail(path=COMMENTS, times=9, status=403, body=SECONDARY)
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "secondary rate limit" in posted.reason
    assert clock.slept == [60, 120]


def test_row_21_a_wait_beyond_the_budget(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    github.fail(path=COMMENTS, times=9, status=429, headers={"retry-after": "999999"}, body={"message": "slow down"})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "999999 s" in posted.reason
    assert clock.slept == []


def test_a_wait_that_is_named_is_kept(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    github.fail(method="POST", path=COMMENTS, status=403, headers={"retry-after": "7"}, body=SECONDARY)
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    assert clock.slept[0] == 7


def test_row_22_three_outages_then_success(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    github.fail(method="POST", path=COMMENTS, times=3, status=502, body="<html>bad gateway</html>")
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    assert clock.slept[:3] == [1, 2, 4]
    assert len(github.world.comments) == 1


def test_four_outages_are_told(github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State) -> None:
    github.fail(path=COMMENTS, times=99, status=503, body="")
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "503" in posted.reason
    assert posted.reason.endswith("(tried 4 times)")
    assert clock.slept == [1, 2, 4]


def test_row_23_a_login_page_with_200(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    page = "<!DOCTYPE html><title>Sign in</title>"
    github.fail(times=99, status=200, headers={"Content-Type": "text/html; charset=utf-8"}, body=page)
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "unexpected content type 'text/html; charset=utf-8'" in posted.reason
    assert github.writes == []


@pytest.mark.parametrize("body", ["", "{", "[1", '"x"', '{"message": 3}', "[" * 100_000, '[{"id": "101"}]'])
def test_json_that_is_none_of_githubs(github: FakeGitHub, client: Client, pull: Pull, state: State, body: str) -> None:
    github.fail(method="GET", path=COMMENTS, status=200, headers={"Content-Type": "application/json"}, body=body)
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "not what GitHub's API answers" in posted.reason


def test_row_24_a_read_hangs(
    github: FakeGitHub, open_: Callable[..., Client], clock: FakeClock, pull: Pull, state: State
) -> None:
    client = open_(read=0.1)
    github.fail(path=COMMENTS, times=1, hangs=0.4)
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    github.fail(path=COMMENTS, times=4, hangs=0.4)
    clock.slept.clear()
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "no answer in 0.1 s" in posted.reason
    assert clock.slept == [1, 2, 4]


def test_nobody_listens(github: FakeGitHub, clock: FakeClock, pull: Pull, state: State) -> None:
    environ = {**github.environ(), "GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_GRAPHQL_URL": ""}
    posted = post_comment(open_client(environ, clock.clock), pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "POST 127.0.0.1:9/graphql: Connection refused" in posted.reason


def test_the_budget_ends_everything(
    github: FakeGitHub, client: Client, clock: FakeClock, pull: Pull, state: State
) -> None:
    clock.time += 301
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "the 300 s for GitHub are spent" in posted.reason
    assert github.requests == []


def test_row_25_a_renamed_repository(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    github.world.renamed["o/r"] = github.world.home = Repository(1, "o/new-name")
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.CREATED
    assert ("POST", "/repositories/1/issues/7/comments") in github.requests
    assert [one["body"].endswith(RED) for one in github.world.on(7)] == [True]


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_write_that_would_lose_its_body_is_not_redirected(
    github: FakeGitHub, client: Client, pull: Pull, state: State, status: int
) -> None:
    github.fail(method="POST", path=COMMENTS, status=status, headers={"Location": f"{github.api}/repositories/1/x"})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert f"redirected with {status}, on which the body would be lost" in posted.reason


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_api_is_not_redirected_to_another_host(
    github: FakeGitHub, client: Client, pull: Pull, state: State, method: str
) -> None:
    github.fail(method=method, path=COMMENTS, status=307, headers={"Location": f"{github.storage}/x"})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert f"redirected to another host, {github.storage.partition('//')[2]}; refused" in posted.reason
    assert "STORAGE" not in [method for method, _ in github.requests]


@pytest.mark.parametrize("location", ["", "//[", "ftp://127.0.0.1/x", "http://a:b@127.0.0.1/x", "http://127.0.0.1:x/"])
def test_a_redirect_to_no_address(github: FakeGitHub, client: Client, pull: Pull, state: State, location: str) -> None:
    github.fail(method="GET", path=COMMENTS, times=99, status=302, headers={"Location": location})
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.FAILED


def test_row_26_the_next_page_on_another_host(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    link = f'<{github.storage}/repositories/1/issues/7/comments?page=2>; rel="next"'
    github.fail(method="GET", path=COMMENTS, headers={"Link": link})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert f"said to be on {github.storage.partition('//')[2]}; refused" in posted.reason
    assert "STORAGE" not in [method for method, _ in github.requests]


def test_pages_without_end(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    link = f'<{github.api}/repos/o/r/issues/7/comments?per_page=100&page=2>; rel="next"'
    github.fail(method="GET", path=COMMENTS, times=999, headers={"Link": link})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert "more than 50 pages" in posted.reason
    assert len(github.requests) == 50


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_row_27_enterprise_base_and_private_ca(
    authority: trustme.CA, clock: FakeClock, pull: Pull, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with FakeGitHub("/api/v3", tls) as github:
        github.world.add_pull()
        assert github.api.startswith("https://")
        environ = {**github.environ(), "GITHUB_API_URL": f"{github.api}/"}
        refused = post_comment(open_client(environ, clock.clock), pull, [RED], wants=True, state=state)
        assert refused.action is Action.FAILED
        assert "CERTIFICATE_VERIFY_FAILED" in refused.reason
        assert "REQUESTS_CA_BUNDLE" in refused.reason

        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "absent.pem"))
        absent = post_comment(open_client(environ, clock.clock), pull, [RED], wants=True, state=state)
        assert absent.action is Action.FAILED
        assert "absent.pem" in absent.reason

        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        posted = post_comment(open_client(environ, clock.clock), pull, [RED], wants=True, state=state)
        assert posted.action is Action.CREATED
        assert github.violations == []


def test_row_28_netrc_changes_nothing_also_across_redirects(
    github: FakeGitHub, client: Client, pull: Pull, state: State, tmp_path: Path
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1\nlogin mallory\npassword secret\n", encoding="utf-8")
    netrc.chmod(0o600)
    # Every request of another authorization than the bearer token is a violation, on storage any is.
    github.world.renamed["o/r"] = github.world.home = Repository(1, "o/new-name")
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    github.world.add_run()
    run = fetch_run(client, 5001)
    github.world.add_artifact(5001, "perfguard-h200-1", b"zip")
    assert fetch_artifacts(client, run, ["h200"])[0].data == b"zip"
    assert ("STORAGE", "/102.zip") in github.requests


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GITHUB_TOKEN", "ghs_a\nb", "GITHUB_TOKEN: holds a character"),
        ("GITHUB_REPOSITORY", "", "GITHUB_REPOSITORY=''"),
        ("GITHUB_REPOSITORY", "o/r/../x", "no owner/name"),
        ("GITHUB_REPOSITORY", "o/r?x", "no owner/name"),
        ("GITHUB_REPOSITORY", "../r", "no owner/name"),
        ("GITHUB_API_URL", "github.com", "GITHUB_API_URL='github.com': not a URL"),
        ("GITHUB_API_URL", "http://github.example.com/api/v3", "without TLS"),
        ("GITHUB_GRAPHQL_URL", "https://elsewhere.example.com/graphql", "is not the host of GITHUB_API_URL"),
    ],
)
def test_a_wrong_variable_is_named_without_the_token(variable: str, value: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        open_client({"GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": "o/r", variable: value})
    assert said in str(error.value)
    assert "ghs_a" not in str(error.value)


def test_no_such_run(client: Client) -> None:
    with pytest.raises(GitHubError, match=r"GET /repos/o/r/actions/runs/9: 404 Not Found; check the number"):
        fetch_run(client, 9)
