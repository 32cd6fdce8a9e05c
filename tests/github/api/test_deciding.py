"""The next step about our comment, from what stands there."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.github.api.comment_identity import Ours, State, digest
from perfguard.github.api.comment_steps import Create, Drop, Edit, Mine, Rest, Step, decide


def ours(number: int, run: int = 0, text: str = "text", *, nonce: str = "") -> Ours:
    state = State(run, 1, "a" * 40, [], 1, digest(text), digest(text), nonce) if run else None
    return Ours(number, state, text, f"body of {text}")


def mine(run: int = 5, text: str = "mine", *, alarm: bool = True) -> Mine:
    return Mine((run, 1), digest(text), alarm)


@pytest.mark.parametrize(
    ("standing", "said", "step"),
    [
        ([], mine(), Create()),
        ([ours(1, 4)], mine(), Edit(ours(1, 4))),
        ([ours(1)], mine(), Edit(ours(1))),
        ([ours(1, 5)], mine(), Edit(ours(1, 5))),  # the same run posts another text
        ([ours(2, 5, "mine"), ours(1, 4)], mine(), Edit(ours(1, 4))),
        ([ours(2, 4), ours(1, 4, "mine")], mine(), Drop(ours(2, 4))),
        ([ours(2, 6), ours(1, 4)], mine(), Edit(ours(1, 4), "body of text")),
        ([ours(3, 5), ours(2, 6), ours(1, 6)], mine(), Drop(ours(3, 5))),
    ],
)
def test_a_step(standing: list[Ours], said: Mine, step: Step) -> None:
    assert decide(standing, said) == step
    assert decide(standing[::-1], said) == step


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        ([], mine(alarm=False)),
        ([ours(1, 4, "mine")], mine()),
        ([ours(1, 6)], mine()),
        ([ours(1, 6)], mine(alarm=False)),
    ],
)
def test_nothing_is_left_to_do(standing: list[Ours], said: Mine) -> None:
    assert isinstance(decide(standing, said), Rest)


def test_a_write_is_recognised_by_its_nonce_whatever_github_made_of_the_text() -> None:
    said = mine()
    said.nonces.add("n1")
    assert isinstance(decide([ours(1, 5, "laid out anew", nonce="n1")], said), Rest)
    assert isinstance(decide([ours(1, 5, "of another job", nonce="n2")], said), Edit)
    said.wrote = True  # and then another job of the same run: two that undo each other would never end
    assert isinstance(decide([ours(1, 5, "of another job", nonce="n2")], said), Rest)


class _Job:
    """A job that keeps to the steps, on comments in memory, and may end at any of them."""

    def __init__(self, run: int) -> None:
        self.mine = mine(run, f"text {run}")
        self.run = run
        self.step: Step | None = None

    def look(self, comments: dict[int, Ours]) -> None:
        self.step = decide(list(comments.values()), self.mine)

    def act(self, comments: dict[int, Ours]) -> None:
        step, self.step = self.step, None
        if isinstance(step, Create):
            number = max(comments, default=0) + 1
            comments[number] = self.written(number)
        elif isinstance(step, Edit) and step.comment.id in comments:
            source = next((one for one in comments.values() if step.body == one.body), None)
            if step.body is None:
                comments[step.comment.id] = self.written(step.comment.id)
            elif source is not None:
                comments[step.comment.id] = Ours(step.comment.id, source.state, source.text, source.body)
        elif isinstance(step, Drop):
            comments.pop(step.comment.id, None)

    def written(self, number: int) -> Ours:
        self.mine.nonces.add(f"n{self.run}")
        self.mine.wrote = True
        return ours(number, self.run, f"text {self.run}", nonce=f"n{self.run}")


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
    assert [one.text for one in comments.values()] == [f"text {count + 1}"]
