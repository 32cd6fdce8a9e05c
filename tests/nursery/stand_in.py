"""What runs in place of Python: has the nursery fork a process that does what was asked for, and is its shadow here.

    python -IS stand_in.py FOLDER ARGUMENTS...

It passes signals on, and ends as that process ends; if it is killed, that process is killed too. It imports little,
so that it starts in hundredths of a second.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # typing's own takes a sixth of the start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SOCKET, START = "socket", "start"  # in the nursery's folder
SIZE = struct.Struct("!Q")  # in front of a request
STATUS = struct.Struct("!i")  # of the process that has ended, as os.waitstatus_to_exitcode gives it
FLAGS = ("-B", "-P", "-u")  # those of Python that a nursery's process can still heed
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

THREADS = "OMP_NUM_THREADS"
INTERPRET = "TRITON_INTERPRET"

# What Python, the linker and libraries ask for when they are loaded, and not later.
_DECISIVE = (
    "ATEN", "CUDA", "GOMP", "HIP", "KMP", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS", "PYTHON", "TORCH", INTERPRET,
)  # fmt: skip
_LATER = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR", THREADS)
_OF_RANKS = ("TORCHELASTIC_", "TORCH_FR_", "TORCH_NCCL_")  # asked for when a process group begins


def decisive(environment: Mapping[str, str], interpreted: bool) -> dict[str, str]:
    """Those variables that a process has to be started with. A nursery whose Triton is `interpreted` serves either kind
    of kernels."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_DECISIVE)
        and name not in _LATER
        and not name.startswith(_OF_RANKS)
        and not (interpreted and name == INTERPRET)
    }


def parse(arguments: list[str]) -> dict[str, Any] | None:
    """The flags, and the module (`-m`) or the code (`-c`) to run with its arguments; None where it is neither."""
    flags = []
    while arguments and arguments[0] in FLAGS:
        flags.append(arguments[0])
        arguments = arguments[1:]
    kind = arguments[0][:2] if arguments else ""
    if kind not in ("-m", "-c"):
        return None
    what, rest = (arguments[0][2:], arguments[1:]) if arguments[0] != kind else ("".join(arguments[1:2]), arguments[2:])
    return {"flags": flags, "kind": kind, "what": what, "rest": rest}


def main() -> int:
    folder, *arguments = sys.argv[1:]
    with open(f"{folder}/{START}", "rb") as file:
        start = marshal.load(file)
    asked = parse(arguments)
    nursery = socket.socket(socket.AF_UNIX)
    possible = asked is not None and decisive(os.environ, start["interpreted"]) == start["decisive"]
    if asked is None or not possible or nursery.connect_ex(f"{folder}/{SOCKET}"):
        os.execv(start["python"], [start["python"], *arguments])
    # A signal waits until the request is sent: what is passed on before it would be taken for its length.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: nursery.send(bytes([number])))
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [file for file in files if file != nursery.fileno() and os.path.exists(f"/proc/self/fd/{file}")]
    asked |= {
        "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "files": files,
        "parent": os.getppid(),
    }  # fmt: skip
    request = marshal.dumps(asked)
    socket.send_fds(nursery, [SIZE.pack(len(request))], files)
    nursery.sendall(request)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    answer = nursery.recv(STATUS.size)
    if not answer:
        print("nursery: ended before what it ran", file=sys.stderr)
        return 1
    (status,) = STATUS.unpack(answer)
    if status < 0:  # it died of a signal
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    # Nothing is left to be torn down.
    os._exit(main())
