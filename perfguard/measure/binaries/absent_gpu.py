"""Recordings for targets whose device is absent: forked processes follow the call as if they had the device.

In such a process tensors in host memory report that they are on a GPU of the target's architecture. Operators still run
on the host, but Python's queries of tensors and of torch.cuda get the target's answers. Torch and the user's code may
store these answers, so the process makes no other call.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch

from perfguard._compat.torch_compiler import load_compiler
from perfguard._compat.torch_internals import ASKED_OF_GPU, has_custom_operators
from perfguard._compat.triton_internals import IMPORTED_BY_LAUNCHES, INTERPRETED, was_imported_as_interpreter
from perfguard.measure.binaries.launch_recorder import Recording, compiled_form, record
from perfguard.measure.binaries.other_inputs import follow_others
from perfguard.measure.binaries.source_hash import Described, Sources
from perfguard.measure.binaries.targets import Target, target_of
from perfguard.model.call import Call
from perfguard.model.orphans import end_with

_FOLLOWED = "sm_80"


def record_elsewhere(call: Call, targets: Sequence[Target | None], seconds: float, sources: Sources) -> list[Recording]:
    """The launches that a call would make on each of `targets`, which may be absent. The target None means this host,
    on which a call without Triton kernels is followed on its derived inputs only.

    The calls are made in forked processes, at most one per core at a time.

    Args:
        seconds: time limit of a process.
        sources: known hashes of modules; those of the launches are added.
    """
    if any(target is not None for target in targets):
        _import_what_launches_need()
    # Derived calls are followed on one target only, because their counts seldom depend on the chip. It is the same one
    # whatever the settings ask for, so that other settings read the same counts.
    on = next((each for each in targets if each is None or each.name == _FOLLOWED), target_of(_FOLLOWED))
    waiting = [*targets, *([on] if targets and call.others and on not in targets else [])]
    children: list[_Child] = []
    recordings = []
    while waiting or children:
        while waiting and len(children) < len(os.sched_getaffinity(0)):
            target = waiting.pop(0)
            followed = call if target is on else dataclasses.replace(call, others=())
            children.append(_Child(followed, target, sources))
        answer = children.pop(0).answer(seconds)
        recordings.append(answer.recording)
        _keep_read_sources(answer, sources)
    for beyond in recordings[len(targets) :]:
        recordings[0] = msgspec.structs.replace(recordings[0], others=beyond.others, other_notes=beyond.other_notes)
    return recordings[: len(targets)]


class _Answer(msgspec.Struct, frozen=True):
    """A child's recording. `read` holds the modules that the child was the first process to read."""

    recording: Recording
    read: dict[str, Described] = {}


def _keep_read_sources(answer: _Answer, sources: Sources) -> None:
    """Keep the hashes and compiled forms of a child's modules and kernels for the next children."""
    sources.known.update(answer.read)
    if not answer.recording.launches:
        return
    interpreted = INTERPRETED.get()
    for module, function in {(launch.module, launch.function) for launch in answer.recording.launches}:
        kernel = getattr(sys.modules.get(module), function, None)
        if type(kernel) is interpreted:
            compiled_form(kernel)


@functools.cache
def _import_what_launches_need() -> None:
    """Import the compiler's front end once, instead of in each child, and the modules that calls of torch's custom
    operators import.

    If Triton was imported as an interpreter, its other modules must be imported in the same way.
    """
    interpreted = {"TRITON_INTERPRET": "1"} if was_imported_as_interpreter() else {}
    with mock.patch.dict(os.environ, interpreted):
        for private in IMPORTED_BY_LAUNCHES:
            private.get()
        if has_custom_operators():
            load_compiler()


class _Child:
    """A process that follows the call on one target."""

    def __init__(self, call: Call, target: Target | None, sources: Sources) -> None:
        self._started = time.monotonic()
        self._answers, to_parent = Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The child needs no threads.
            parent, self._process = os.getpid(), _fork()
        if self._process == 0:
            end_with(parent)
            self._answers.close()
            _answer(call, target, to_parent, sources)
        to_parent.close()

    def answer(self, seconds: float) -> _Answer:
        """The child's answer; it is killed `seconds` after its start."""
        data = b""
        with self._answers:
            late = not self._answers.poll(max(0.0, self._started + seconds - time.monotonic()))
            if late:
                os.kill(self._process, signal.SIGKILL)
            else:
                with suppress(EOFError):  # The child has ended without an answer.
                    data = self._answers.recv_bytes()
        _, status = os.waitpid(self._process, 0)
        if data:
            return msgspec.json.decode(data, type=_Answer)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGINT:  # Ctrl-C reaches all processes of a terminal, and may miss this one
            raise KeyboardInterrupt
        problem = f"took longer than {seconds:g} s" if late else f"its process ended with {code}"
        return _Answer(Recording(problem=problem, passing=True))


def _fork() -> int:
    """Call `os.fork`, and delay Ctrl-C until it returns, because an exception in a fork hook would be lost.

    Ctrl-C ends the child. Blocking the signal would not help, because torch's threads would receive it instead.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return os.fork()
    interrupts: list[bool] = []
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
    process = -1
    try:
        process = os.fork()
    finally:
        signal.signal(signal.SIGINT, handler if process else signal.SIG_DFL)
    if process and interrupts:
        signal.raise_signal(signal.SIGINT)
    return process


def _answer(call: Call, target: Target | None, to_parent: Connection, sources: Sources) -> None:
    """Run the child: record the call, send the answer, and exit."""
    gc.disable()  # A collection would write to, and so copy, all memory shared with the parent.
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    try:
        torch.set_num_threads(1)  # The parent's thread pool does not survive the fork.
        known = set(sources.known)
        recording = Recording()
        with nullcontext() if target is None else simulated(target):
            if target is not None:
                recording = record(call, target, sources, on_the_host=True)
            follow_others(call, target, sources, recording, on_the_host=target is not None)
        read = {name: described for name, described in sources.known.items() if name not in known}
        to_parent.send_bytes(msgspec.json.encode(_Answer(recording, read)))
        os._exit(0)
    finally:
        os._exit(1)


@contextmanager
def simulated(target: Target) -> Iterator[None]:
    """Report every tensor as on `cuda:0`, a `target`, while inside. Operators run under `Unwritten`."""
    device = torch.device("cuda", 0)
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "get_device_capability": target.capability, "get_device_name": target.chip,
        "get_device_properties": _properties(target), "get_arch_list": [target.name], "synchronize": None,
        "empty_cache": None, "set_device": None, "current_stream": SimpleNamespace(cuda_stream=0, device=device),
        "is_current_stream_capturing": False, "is_bf16_supported": True,
        "get_sync_debug_mode": 0, "set_sync_debug_mode": None, **{private.name: 0 for private in ASKED_OF_GPU},
    }  # fmt: skip
    hip = target.backend == "hip"
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _always(answer)))
        stack.enter_context(mock.patch.object(torch.version, "hip", "7.0" if hip else None))
        stack.enter_context(mock.patch.object(torch.version, "cuda", None if hip else "13.0"))
        for name, answer in (("device", device), ("is_cuda", True), ("is_cpu", False)):
            stack.enter_context(mock.patch.object(torch.Tensor, name, property(_always(answer))))
        for name in ("tensor", "as_tensor"):  # No dispatch mode sees these functions.
            stack.enter_context(mock.patch.object(torch, name, _on_the_host(getattr(torch, name))))
        stack.enter_context(mock.patch.object(torch.autocast, "__init__", _of_host(torch.autocast.__init__)))
        yield


def _always(answer: Any) -> Any:
    return lambda *_, **__: answer


def _on_the_host(function: Any) -> Any:
    """The function without its `device` argument, unless the device is "meta"."""

    def called(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        meta = device is not None and torch.device(device).type == "meta"
        return function(*args, device=device if meta else None, **kwargs)

    return called


def _of_host(function: Callable[..., None]) -> Callable[..., None]:
    """The constructor of `torch.autocast` that casts, or lets be, operators of the host, where they run."""

    def made(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        function(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return made


def _properties(target: Target) -> SimpleNamespace:
    """The known properties of the chip; any other name raises an AttributeError."""
    major, minor = target.capability
    return SimpleNamespace(
        name=target.chip,
        major=major,
        minor=minor,
        multi_processor_count=target.processors,
        warp_size=target.warp_width,
        max_threads_per_multi_processor=target.warps * target.warp_width,
        shared_memory_per_block_optin=target.block_shared_bytes,
        shared_memory_per_multiprocessor=target.shared_bytes,
        regs_per_multiprocessor=target.registers or 65536,
        gcnArchName=target.name,
    )
