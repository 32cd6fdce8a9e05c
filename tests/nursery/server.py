"""The process that has imported what takes seconds, and forks itself for each stand-in that connects to its socket.

python -m tests.nursery.server SOCKET EXECUTABLE MODULES...
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.nursery.stand_in import SIZE, STATUS, THREADS

_ABOVE = 1000  # where received files wait until those of the nursery are closed


@dataclass(frozen=True)
class Request:
    """What a stand-in asked for, and the files that it has open, by their numbers there."""

    asked: Mapping[str, Any]
    files: Mapping[int, int]


def receive(connection: socket.socket) -> Request | None:
    """None of a stand-in that was killed before it had asked."""
    head, files, _, _ = socket.recv_fds(connection, SIZE.size, 253)
    if not head:
        return None
    (size,) = SIZE.unpack(head)
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            for file in files:  # whoever reads from their other ends waits for the last of them to be closed
                os.close(file)
            return None
        data += more
    asked = marshal.loads(data)
    return Request(asked, dict(zip(asked["files"], files, strict=True)))


def serve(listener: socket.socket) -> Request | None:
    """Fork for every request; returns it in the child. In the parent None, at the end of its standard input."""
    events = selectors.DefaultSelector()
    events.register(0, selectors.EVENT_READ, "end")
    events.register(listener, selectors.EVENT_READ, "ask")
    while True:
        for key, _ in events.select():
            if key.data == "end":
                for _, other in list(events.get_map().items()):
                    if isinstance(other.data, int):
                        kill(other.data)
                return None
            if key.data == "ask":
                connection, _ = listener.accept()
                request = receive(connection)
                if request is None:
                    continue
                child = os.fork()
                if not child:
                    leave(events, connection)
                    return request
                for file in request.files.values():
                    os.close(file)
                events.register(os.pidfd_open(child), selectors.EVENT_READ, (child, connection))
                events.register(connection, selectors.EVENT_READ, child)
            elif isinstance(key.data, int):
                heard = key.fileobj.recv(1)
                if heard:
                    os.kill(key.data, heard[0])
                else:  # its stand-in is gone
                    events.unregister(key.fileobj)
                    kill(key.data)
            else:
                reap(events, key)


def leave(events: selectors.BaseSelector, connection: socket.socket) -> None:
    """In a child: drop what the parent waits for. `become` closes the sockets' numbers."""
    for key in [*events.get_map().values()]:
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.detach()
    connection.detach()
    events.close()


def reap(events: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Tell the stand-in of a child that has ended its exit status."""
    child, connection = key.data
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:  # as from whoever ends a group: what it has started ends as well
        kill(child)
    with contextlib.suppress(KeyError):
        events.unregister(connection)
    with contextlib.suppress(OSError):
        connection.sendall(STATUS.pack(status))
    connection.close()
    events.unregister(key.fd)
    os.close(key.fd)


def kill(child: int) -> None:
    """The child with whatever it has started: it leads a group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def become(request: Request, executable: str, paths: list[str]) -> None:
    """The child takes on what was asked for: group, folder, environment, files, arguments."""
    asked = request.asked
    os.setsid()
    os.chdir(asked["folder"])
    own, parent_of_fork = os.getpid(), os.getppid
    # Whoever ends with its parent would end at once. A fork of this process has a parent as any other.
    os.getppid = lambda: asked["parent"] if os.getpid() == own else parent_of_fork()
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # is asked of the environment once and kept
    threads = os.environ.get(THREADS)
    sys.modules["torch"].set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    waiting = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for number, file in request.files.items()}
    os.closerange(0, _ABOVE)
    for number, file in waiting.items():
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "-u" in asked["flags"] or os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
    sys.executable = executable
    sys.orig_argv = [executable, *asked["arguments"]]
    sys.dont_write_bytecode = "-B" in asked["flags"] or bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = [] if "-P" in asked["flags"] else [asked["folder"] if asked["kind"] == "-m" else ""]
    sys.path[:] = [*first, *given, *paths]


def run(asked: Mapping[str, Any]) -> None:
    """What Python does with `-m` and `-c`."""
    if asked["kind"] == "-m":
        sys.argv[:] = ["-m", *asked["rest"]]
        runpy.run_module(asked["what"], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = ["-c", *asked["rest"]]
    sys.modules["__main__"] = module = ModuleType("__main__")
    exec(compile(asked["what"], "<string>", "exec"), vars(module))


def run_to_its_end(asked: Mapping[str, Any]) -> int:
    """The status that Python would end with; an exception is shown as Python does."""
    try:
        run(asked)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return exit.code or 0
        print(exit.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave_operators() -> None:
    """Let no operator that is defined now be taken out of torch's tables again, which is done at the end."""
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (last := each.peek()) and last[1].__module__ == "torch.library":
            each.detach()


def end(status: int) -> None:
    """As Python ends, but that nothing is torn down: of torch that takes most of a second."""
    threading._shutdown()
    leave_operators()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def main() -> None:
    path, executable, *modules = sys.argv[1:]
    # Of the environment alone: the nursery's own folder and its PYTHONPATH are nobody else's.
    own = {os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    paths = [path for path in sys.path if path not in own]
    for name in modules:
        importlib.import_module(name)
    os.environ.pop("TRITON_INTERPRET", None)  # was for Triton's own functions; a project says when kernels are
    for plugin in {"perfguard", "xdist"} & sys.modules.keys():
        # pytest warns of a plugin's package that was imported before it could rewrite its assertions.
        sys.modules[plugin].__doc__ = f"{sys.modules[plugin].__doc__} PYTEST_DONT_REWRITE"
    # Here and not in each of its processes, which would copy every page that this looks at.
    leave_operators()
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]  # a project has its own
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()  # collections of its processes are not to touch, and so copy, all of this
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, b"ready\n")
        request = serve(listener)
    if request is None:
        end(0)
    else:
        become(request, executable, paths)
        end(run_to_its_end(request.asked))


if __name__ == "__main__":
    main()
