"""A post job of its own process: posts what its argument says, by the environment, and prints what became of it.

Waits take a fiftieth of their time.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from perfguard.github.api.client import open_client
from perfguard.github.api.comment_identity import State
from perfguard.github.api.comments import post_comment
from perfguard.github.api.pulls import Pull
from perfguard.github.api.retries import Clock


class Job(msgspec.Struct):
    """What one job posts."""

    run: int
    body: str
    base: str
    head: str


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    client = open_client(os.environ, Clock(sleep=lambda seconds: time.sleep(seconds / 50)))
    pull = Pull(7, job.base, job.head)
    posted = post_comment(client, pull, [job.body], wants=True, state=State(job.run, 1, job.head))
    print(msgspec.json.encode(posted).decode())


if __name__ == "__main__":
    main()
