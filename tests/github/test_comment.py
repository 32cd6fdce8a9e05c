"""The sticky comment: one on a pull request, whatever stands there and whoever races."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.github.api.client import Client, open_client
from perfguard.github.api.comment import (
    Action,
    Comment,
    Create,
    Drop,
    Edit,
    Ours,
    Posted,
    Rest,
    Rules,
    Step,
    User,
    compose,
    decide,
    parse,
    post_comment,
)
from perfguard.github.api.measured_run import Pull, Side
from perfguard.model.errors import UsageError
from tests.github.conftest import FakeClock
from tests.github.fake import ALL_PERMISSIONS, BOT, FakeGitHub, sha

RED, WORSE, GREEN = "1 case slower", "2 cases slower", "no change"
PULL = Pull(7, "open", Side(sha("head"), "topic"), Side(sha("base"), "main"))
COMMENTS = "/issues/7/comments$"
PATIENCE = 60.0

Post = Callable[..., Posted]


@pytest.fixture
def post(github: FakeGitHub, client: Client) -> Post:
    """Posts a text of a run."""

    def posted(text: str = RED, run: int = 5001, *, wants: bool = True, attempt: int = 1, **rules: object) -> Posted:
        github.world.add_run(run)
        return post_comment(client, PULL, text, wants=wants, order=(run, attempt), rules=Rules(**rules))  # type: ignore[arg-type]

    return posted


def texts(github: FakeGitHub, key: str = "default") -> list[str]:
    """The texts of our comments, by id."""
    return [
        comment["body"].partition("\n\n")[2]
        for comment in github.world.on(7)
        if comment["user"] == BOT and f"key={key} " in comment["body"]
    ]


def test_a_comment_is_created_when_somebody_has_to_act_and_edited_from_then_on(github: FakeGitHub, post: Post) -> None:
    assert post(GREEN, wants=False).action is Action.SILENT
    assert github.writes == []
    assert post(RED).action is Action.CREATED
    assert github.writes == [("POST", "/issues/7/comments")]
    (first,) = github.world.comments
    assert post(GREEN, 5002, wants=False).action is Action.EDITED
    assert list(github.world.comments) == [first]
    assert texts(github) == [GREEN]
    github.world.comments.clear()  # somebody deleted it
    assert post(GREEN, 5003, wants=False).action is Action.SILENT
    assert post(WORSE, 5004).action is Action.CREATED
    assert texts(github) == [WORSE]


def test_ours_on_the_third_page_is_edited(github: FakeGitHub, post: Post) -> None:
    for number in range(220):
        github.world.add_comment(7, f"comment {number}")
    github.world.add_comment(7, compose("default", (5000, 1), RED), BOT)
    assert post(WORSE).action is Action.EDITED
    assert texts(github) == [WORSE]


@pytest.mark.parametrize("fault", [{"status": 502, "body": "bad gateway"}, {"drops": True}], ids=["502", "dropped"])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_post_without_an_answer_that_was_stored_makes_no_twin(
    github: FakeGitHub, post: Post, fault: dict[str, object], lag: int
) -> None:
    github.world.list_lag = lag
    github.fail(method="POST", path=COMMENTS, stored=True, **fault)
    assert post().action in (Action.CREATED, Action.EDITED)
    assert texts(github) == [RED]


def test_a_list_that_lags_behind_a_create_makes_no_twin(github: FakeGitHub, post: Post) -> None:
    github.world.list_lag = 3
    assert post().action is Action.CREATED
    assert len(github.world.comments) == 1


def test_ours_vanishes_before_the_edit_and_is_created_once(github: FakeGitHub, post: Post) -> None:
    post()
    (first,) = github.world.comments
    github.fail(method="PATCH", before=lambda: github.world.comments.pop(first))
    assert post(WORSE, 5002).action is Action.CREATED
    assert first not in github.world.comments
    assert texts(github) == [WORSE]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "Unable to create comment because issue is locked."),
        (403, "Repository was archived so is read-only."),
        (410, "This issue was deleted"),
    ],
)
def test_locked_archived_or_gone_is_no_failure(github: FakeGitHub, post: Post, status: int, message: str) -> None:
    github.fail(method="POST", path=COMMENTS, times=9, status=status, body={"message": message})
    posted = post()
    assert posted.action is Action.SKIPPED
    assert message in posted.reason
    assert len(github.writes) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "closed"}, "closed"),
        ({"labels": [{"name": "perfguard:mute"}]}, "perfguard:mute"),
        ({"draft": True}, "draft"),
        ({"head": {"sha": sha("pushed"), "ref": "topic", "repo": None}}, f"#7 is at {sha('pushed')[:12]}"),
    ],
    ids=["closed", "muted", "draft", "pushed"],
)
def test_a_pull_request_that_takes_no_comment_meanwhile(
    github: FakeGitHub, post: Post, change: dict[str, object], said: str
) -> None:
    post(RED)
    github.world.pulls[7].update(change)
    posted = post(GREEN, 5002, drafts=False)
    assert posted.action is Action.SKIPPED
    assert said in posted.reason
    assert texts(github) == [RED]


def test_a_marker_planted_by_a_person_is_left_alone(github: FakeGitHub, post: Post) -> None:
    planted = compose("default", (9999, 1), "I am the bot, all is well")
    theirs = github.world.add_comment(7, planted, {"login": "mallory", "type": "User"})
    github.world.add_comment(7, planted, {"login": "github-actions[bot]x", "type": "Bot"})
    assert post().action is Action.CREATED
    assert github.world.comments[theirs]["body"] == planted
    assert texts(github) == [RED]


@pytest.mark.parametrize("run", [5003, 10**18 - 1])
def test_a_run_that_github_does_not_know_stops_no_update(github: FakeGitHub, post: Post, run: int) -> None:
    """Whoever may edit our comment can make it claim any run."""
    github.world.add_comment(7, compose("default", (run, 1), GREEN), BOT)
    assert post(RED).action is Action.EDITED
    github.world.add_comment(7, compose("default", (5002, 1), GREEN), BOT)
    github.world.add_run(5002)
    assert post(RED).action is Action.SILENT
    assert texts(github) == [GREEN]


@pytest.mark.parametrize(
    "body",
    [
        "<!-- perfguard:v1 key=default -->\n<!-- perfguard:state eyJydW4iOjF9 -->\n\nof an earlier version",
        compose("default", (5000, 1), RED).replace("\n", "\r\n"),
    ],
    ids=["an earlier version's", "line ends of the web editor"],
)
def test_ours_is_found_in_another_form(github: FakeGitHub, post: Post, body: str) -> None:
    github.world.add_comment(7, body, BOT)
    assert post().action is Action.EDITED
    assert texts(github) == [RED]


def test_two_configurations_have_two_comments(github: FakeGitHub, post: Post) -> None:
    post(RED, key="nightly")
    post(WORSE)
    post(GREEN, 5002, wants=False, key="nightly")
    assert texts(github, "nightly") == [GREEN]
    assert texts(github) == [WORSE]
    with pytest.raises(UsageError, match="key 'A b'"):
        post(key="A b")


def test_twins_are_deleted_once_the_lowest_id_says_it(github: FakeGitHub, post: Post) -> None:
    for _ in range(3):
        github.world.add_comment(7, compose("default", (5000, 1), "old"), BOT)
    github.fail(method="DELETE", status=403, body={"message": "Must have admin rights to Repository."})
    posted = post()
    assert [method for method, _ in github.writes] == ["PATCH", "DELETE", "DELETE"]
    assert "could not be deleted" in posted.warnings[0]
    assert texts(github) == [RED, "old"]


def test_a_comment_that_cannot_be_read_back_was_written_all_the_same(github: FakeGitHub, post: Post) -> None:
    github.fail(method="GET", path="/issues/", skip=1, times=99, status=503, body="")
    posted = post()
    assert posted.action is Action.CREATED
    assert "503" in posted.warnings[0]


@pytest.mark.parametrize(
    ("author", "user", "ours"),
    [
        ("", User("github-actions[bot]", "Bot"), True),
        ("", User("github-actions[bot]", "User"), False),
        ("", User("github-actions", "Bot"), False),
        ("", None, False),
        ("guard[bot]", User("guard[bot]", "Bot"), True),
        ("guard[bot]", User("github-actions[bot]", "Bot"), False),
    ],
)
def test_ours_is_by_author_too(author: str, user: User | None, ours: bool) -> None:
    found = parse(Comment(1, compose("default", (1, 2), "text"), user), Rules(author=author))
    assert (found is not None and found.order == (1, 2)) is ours


@given(st.text(max_size=80) | st.sampled_from([None, *(f"{before}<!-- perfguard:v1 key=default{run} -->{after}"
    for before in ("", " ", "> ", "x\n") for run in ("", " run=1", " run=-1 attempt=1", f" run={'9' * 19} attempt=1")
    for after in ("", "x", "\nx"))]))  # fmt: skip
def test_any_body_is_ours_or_not(body: str | None) -> None:
    found = parse(Comment(1, body, User("github-actions[bot]", "Bot")), Rules())
    marker = "<!-- perfguard:v1 key=default -->"
    assert (found is not None) is ((body or "").partition("\n")[0] == marker)


# -- steps -------------------------------------------------------------------------------------------------------------


def ours(number: int, run: int) -> Ours:
    return Ours(number, (run, 1), f"by {run}")


@pytest.mark.parametrize(
    ("standing", "step"),
    [
        ([], Create()),
        ([ours(1, 4)], Edit(ours(1, 4))),
        ([ours(1, -1)], Edit(ours(1, -1))),
        ([ours(1, 5)], Edit(ours(1, 5))),  # an earlier try, or a job of the same run
        ([ours(2, 5), ours(1, 4)], Edit(ours(1, 4))),
        ([ours(2, 6), ours(1, 4)], Edit(ours(1, 4), "by 6")),
        ([ours(3, 5), ours(2, 6), ours(1, 6)], Drop(ours(3, 5))),
        ([ours(1, 6)], Rest("run 6 is newer and has posted")),
    ],
)
def test_a_step(standing: list[Ours], step: Step) -> None:
    assert decide(standing, (5, 1), wants=True, wrote=False) == step
    assert decide(standing[::-1], (5, 1), wants=True, wrote=False) == step


class _Job:
    """A job that keeps to the steps, on comments in memory, and may end at any of them."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.wrote = False
        self.step: Step | None = None

    def look(self, comments: dict[int, Ours]) -> None:
        self.step = decide(list(comments.values()), (self.run, 1), wants=True, wrote=self.wrote)

    def act(self, comments: dict[int, Ours]) -> None:
        step, self.step = self.step, None
        if isinstance(step, Create):
            number = max(comments, default=0) + 1
            comments[number] = self.written(number)
        elif isinstance(step, Edit) and step.comment.id in comments:
            number = step.comment.id
            source = next((each for each in comments.values() if each.body == step.body), None)
            if step.body is None:
                comments[number] = self.written(number)
            elif source is not None:
                comments[number] = Ours(number, source.order, source.body)
        elif isinstance(step, Drop):
            comments.pop(step.comment.id, None)

    def written(self, number: int) -> Ours:
        self.wrote = True
        return ours(number, self.run)


@given(st.randoms(use_true_random=False), st.integers(2, 4), st.integers(0, 40))
def test_the_next_run_converges_whatever_racing_and_killed_jobs_left(
    chance: random.Random, count: int, steps: int
) -> None:
    comments: dict[int, Ours] = {}
    jobs = [_Job(run) for run in range(1, count + 1)]
    for _ in range(steps):
        job = chance.choice(jobs)
        (job.look if job.step is None else job.act)(comments)
    last = _Job(count + 1)
    for _ in range(30):
        last.look(comments)
        if isinstance(last.step, Rest):
            break
        last.act(comments)
    assert [one.body for one in comments.values()] == [f"by {count + 1}"]


# -- two jobs at once --------------------------------------------------------------------------------------------------

OLDER, NEWER = "ghs_older", "ghs_newer"  # tokens: the fake tells the two jobs apart by them


@pytest.fixture
def start(github: FakeGitHub) -> Iterator[Callable[[str], Callable[[], Posted]]]:
    """Starts a job in a thread of its own; the returned call waits for it."""
    github.world.tokens = {OLDER: ALL_PERMISSIONS, NEWER: ALL_PERMISSIONS}
    runs = {OLDER: 5001, NEWER: 5002}
    for run in runs.values():
        github.world.add_run(run)
    with ThreadPoolExecutor() as pool:

        def started(token: str) -> Callable[[], Posted]:
            client = open_client(github.environ(token), FakeClock().clock)
            text = "by the older run" if token == OLDER else "by the newer run"
            job = pool.submit(post_comment, client, PULL, text, wants=True, order=(runs[token], 1))
            return lambda: job.result(PATIENCE)

        yield started


Start = Callable[[str], Callable[[], Posted]]


@pytest.mark.parametrize("lag", [0, 1])
def test_two_jobs_that_both_see_no_comment(github: FakeGitHub, start: Start, lag: int) -> None:
    github.world.list_lag = lag
    both = threading.Barrier(2)
    for token in (OLDER, NEWER):
        github.fail(method="GET", path=COMMENTS, token=token, after=lambda: both.wait(PATIENCE))
    jobs = [start(OLDER), start(NEWER)]
    assert Action.FAILED not in [job().action for job in jobs]
    assert github.requests.count(("POST", "/issues/7/comments")) == 2
    assert texts(github) == ["by the newer run"]


def test_the_older_job_comes_last(github: FakeGitHub, start: Start) -> None:
    newer_is_done = threading.Event()
    github.fail(method="GET", path=COMMENTS, token=OLDER, before=lambda: newer_is_done.wait(PATIENCE))
    older = start(OLDER)
    assert start(NEWER)().action is Action.CREATED
    newer_is_done.set()
    posted = older()
    assert posted.action is Action.SILENT
    assert posted.reason == "run 5002 is newer and has posted"
    assert texts(github) == ["by the newer run"]


def test_the_older_job_writes_over_the_newer_one(github: FakeGitHub, start: Start) -> None:
    github.world.add_comment(7, compose("default", (5000, 1), "old"), BOT)
    older_decided, newer_wrote, older_wrote = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        older_decided.set()
        newer_wrote.wait(PATIENCE)

    github.fail(method="PATCH", token=OLDER, before=hold, after=older_wrote.set)
    github.fail(method="PATCH", token=NEWER, before=lambda: older_decided.wait(PATIENCE), after=newer_wrote.set)
    github.fail(method="GET", path=COMMENTS, token=NEWER, skip=1, before=lambda: older_wrote.wait(PATIENCE))
    jobs = [start(OLDER), start(NEWER)]
    assert [job().action for job in jobs][1] is Action.EDITED
    assert [method for method, _ in github.writes] == ["PATCH", "PATCH", "PATCH"]
    assert texts(github) == ["by the newer run"]
