"""Recordings for targets without a device here: forked processes follow the call and pretend to have the device."""

from __future__ import annotations

import functools
import gc
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from unittest import mock

import msgspec

from perfguard._compat.torch_compiler import load_compiler
from perfguard._compat.torch_internals import has_custom_operators
from perfguard._compat.triton_internals import INTERPRETED, OF_LAUNCHES, was_imported_as_interpreter
from perfguard.measure.binaries.launch_recorder import Trace, compiled_form, record
from perfguard.measure.binaries.launch_records import Recording
from perfguard.measure.binaries.source_hash import Described, Sources
from perfguard.measure.binaries.targets import Target


def record_elsewhere(
    trace: Trace, targets: Sequence[Target], seconds: float, sources: Sources | None = None
) -> list[Recording]:
    """The launches that `trace` would make on each of `targets`, which need not be present.

    The calls are made in forked processes, so that no state of the pretended device remains. There are as many at once
    as there are cores.

    Args:
        seconds: time limit of a process.
        sources: known hashes of modules; those of the launches are added.
    """
    _import_what_launches_need()
    sources = sources or Sources()
    waiting = list(targets)
    children = [_Child(trace, waiting.pop(0), sources) for _ in targets[: len(os.sched_getaffinity(0))]]
    recordings = []
    while children:
        answer = children.pop(0).answer(seconds)
        recordings.append(answer.recording)
        _learn(answer, sources)
        if waiting:
            children.append(_Child(trace, waiting.pop(0), sources))
    return recordings


class _Answer(msgspec.Struct, frozen=True):
    """A child's recording. `read`: modules first read by the child, which may be the only process that loaded them."""

    recording: Recording
    read: dict[str, Described] = {}


def _learn(answer: _Answer, sources: Sources) -> None:
    """Keep the child's knowledge of modules and kernels, which dies with it, for the next children."""
    interpreted = INTERPRETED.get()
    sources.known.update(answer.read)
    for module, function in {(launch.module, launch.function) for launch in answer.recording.launches}:
        kernel = getattr(sys.modules.get(module), function, None)
        if type(kernel) is interpreted:
            compiled_form(kernel)


class _Child:
    """A process that follows the call on one target."""

    def __init__(self, trace: Trace, target: Target, sources: Sources) -> None:
        self._started = time.monotonic()
        self._answers, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads do not survive a fork; the child needs none
            self._process = os.fork()
        if self._process == 0:
            os.close(self._answers)
            _answer(trace, target, write, sources)
        os.close(write)

    def answer(self, seconds: float) -> _Answer:
        """The child's answer; it is killed `seconds` after its start."""
        with os.fdopen(self._answers, "rb") as answers:
            data = _read_all(answers.fileno(), self._process, self._started + seconds)
        _, status = os.waitpid(self._process, 0)
        if data:
            return msgspec.json.decode(data, type=_Answer)
        code = os.waitstatus_to_exitcode(status)
        late = code == -signal.SIGKILL
        problem = f"took longer than {seconds:g} s" if late else f"its process ended with {code}"
        return _Answer(Recording(problem=problem))


@functools.cache
def _import_what_launches_need() -> None:
    """Import the compiler's front end once, not in each child, with the modules that torch's custom operators, if any,
    import when called.

    If Triton was imported as an interpreter, its other modules can only be imported in the same way.
    """
    interpreted = {"TRITON_INTERPRET": "1"} if was_imported_as_interpreter() else {}
    with mock.patch.dict(os.environ, interpreted):
        for private in OF_LAUNCHES:
            private.get()
        if has_custom_operators():
            load_compiler()
        import perfguard.measure.binaries.pretended_gpu  # noqa: F401  # else each child would look it up under pytest


def _answer(trace: Trace, target: Target, write: int, sources: Sources) -> None:
    """Run the child: record, write the answer, and exit."""
    import torch

    from perfguard.measure.binaries.pretended_gpu import pretended

    gc.disable()  # a collection would write to all memory shared with the parent, and so copy it
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    try:
        torch.set_num_threads(1)  # the parent's thread pool does not survive the fork
        with pretended(target):
            known = set(sources.known)
            recording = record(trace, target, sources, on_the_host=True)
        read = {name: described for name, described in sources.known.items() if name not in known}
        with os.fdopen(write, "wb") as answer:
            answer.write(msgspec.json.encode(_Answer(recording, read)))
    finally:
        os._exit(0)


def _read_all(pipe: int, child: int, end: float) -> bytes:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return b""
        part = os.read(pipe, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
