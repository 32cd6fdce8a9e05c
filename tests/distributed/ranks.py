"""Processes of one group that stay, so that each test costs its own work and not a start.

    def check(rank: int, ranks: int) -> float: ...

    first, second = two_ranks.run(check)

What fails on a rank fails the test, with that rank's traceback; the group is started anew for the next one.
"""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SECONDS = 60.0  # of one check, and of one collective


class Ranks:
    """A gloo group of so many processes, started by the first `run`."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def run(self, check: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`check(rank, ranks, *arguments)` on every rank at once; what each returned.

        Raises:
            AssertionError: it raised somewhere, or did not end in time.
        """
        if not self._pipes:
            self._start()
        for pipe in self._pipes:
            pipe.send((check, arguments))
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        found: list[Any] = [None] * self.ranks
        while waiting:
            ready = wait([*waiting], timeout=SECONDS)
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type]
                good, found[rank] = self._answer(pipe)  # type: ignore[arg-type]
                if not good:  # the others may wait for it in vain
                    self.close()
                    raise AssertionError(f"rank {rank} of {self.ranks}:\n{found[rank]}")
            if not ready:
                self.close()
                raise AssertionError(f"ranks {sorted(waiting.values())} of {self.ranks} did not end in {SECONDS:.0f} s")
        return found

    @staticmethod
    def _answer(pipe: Connection) -> tuple[bool, Any]:
        try:
            answer: tuple[bool, Any] = pipe.recv()
        except EOFError:
            return False, "its process ended"
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        meeting = Path(tempfile.mkdtemp(prefix="ranks-")) / "store"
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.ranks, str(meeting), theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _serve(rank: int, ranks: int, meeting: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    import tests.kernels.paths  # noqa: F401 - before anything imports triton

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=limit)
    while True:
        try:
            check, arguments = pipe.recv()
        except EOFError:  # the test session has ended
            return
        torch.manual_seed(rank)
        try:
            answer = (True, check(rank, ranks, *arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
