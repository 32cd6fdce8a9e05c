"""Fresh Python processes without the seconds that torch takes to import: a process that has imported it forks itself.

`Nursery.python` stands in for `sys.executable`. What it starts is a process of its own, with the arguments,
environment, folder, open files and exit status that it was given; only the modules that many runs import are there
already, and the hash seed is the nursery's. It imports nothing of a project's own.
"""

from __future__ import annotations

import marshal
import os
import pkgutil
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.nursery.stand_in import SOCKET, START, decisive

ROOT = Path(__file__).parents[2]


# Parts of perfguard that its processes import wherever they guard, with all that is below: pytest rewrites the
# assertions of each file that it imports of a plugin's package, which takes as long as the rest of a process's start.
_PARTS = (
    "check/hard_inputs", "judge", "measure/devices/vendors", "measure/metrics", "measure/timers", "pytest_plugin",
    "session", "session/pairing", "store",
)  # fmt: skip
# Nothing that starts a thread: threads do not survive a fork. `perfguard.plugin` is left for pytest to import.
SLOW = (
    "numpy", "scipy.stats", "torch", "torch._dynamo", "torch._library.custom_ops", "torch.utils._python_dispatch",
    "networkx", "torch._functorch.aot_autograd", "torch._functorch._aot_autograd.graph_compile",  # of each compilation
    "triton", "triton.language", "triton.compiler", "triton.experimental.gluon", "xml.etree.ElementTree", "pdb",
    "execnet", "pytest", "xdist.plugin", "xdist.looponfail", "xdist.remote",
    "perfguard.check.all_configs", "perfguard.measure.binaries.compile_worker",
    "perfguard.measure.devices.allocators", "perfguard.testing.fake",
    "perfguard.measure.devices.kineto", "perfguard.measure.devices.operators", "perfguard.render.terminal",
    *(
        f"perfguard.{part.replace('/', '.')}.{module.name}"
        for part in _PARTS for module in pkgutil.iter_modules([str(ROOT / "perfguard" / part)])
    ),
)  # fmt: skip


class Nursery:
    """A process that forks, and the program that has it do so.

    Args:
        interpreted: Triton's own functions are for its interpreter. Whether kernels are is asked when they are
            defined, of each process's own environment.
        environment: that processes are going to be started with; this process's if left out.
        executable: what its processes take for Python; `python` if left out.
        modules: what it imports; of these, "torch" and "perfguard" are needed.

    Attributes:
        python: the program to start. Where a nursery's process cannot be what is asked for (another flag, another hash
            seed, a library's variable that is not as in `environment`), Python itself is started.
    """

    def __init__(
        self,
        *,
        interpreted: bool = False,
        environment: Mapping[str, str] | None = None,
        executable: str | None = None,
        modules: Sequence[str] = SLOW,
    ) -> None:
        own = dict(os.environ if environment is None else environment)
        self.folder = Path(tempfile.mkdtemp(prefix="nursery-"))
        self.python = str(self.folder / "python")
        start = {"python": sys.executable, "interpreted": interpreted, "decisive": decisive(own, interpreted)}
        (self.folder / START).write_bytes(marshal.dumps(start))
        stand_in = [sys.executable, "-IS", str(ROOT / "tests" / "nursery" / "stand_in.py"), str(self.folder)]
        Path(self.python).write_text(f'#!/bin/sh\nexec {shlex.join(stand_in)} "$@"\n')
        Path(self.python).chmod(0o755)
        self._server: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "pidfd_open"):  # no Linux: without a socket the stand-in always starts Python itself
            return
        own |= {"PYTHONPATH": os.pathsep.join([str(ROOT), own.get("PYTHONPATH", "")])}
        if interpreted:
            own["TRITON_INTERPRET"] = "1"
        line = [sys.executable, "-m", "tests.nursery.server", str(self.folder / SOCKET), executable or self.python]
        self._server = subprocess.Popen(
            [*line, *modules], cwd=ROOT, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None
        if not self._server.stdout.readline():
            raise RuntimeError(f"nursery: did not start; run {shlex.join(line)} {' '.join(modules)} to see why")

    def interpreting(self) -> Nursery:
        """Another, whose processes interpret kernels where there is no GPU. The runs of pytest that they start do so,
        too; whatever else they start, such as compiling processes, starts by `self.python`."""
        import torch

        # A GPU's driver, once started, dies in forks: whoever asks whether there is one must not start it.
        environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        either = self.folder / "either"
        made = Nursery(interpreted=not torch.cuda.is_available(), environment=environment, executable=str(either))
        runs = f'case "$*" in *"-m pytest"*|*"run_pytest()"*) exec {shlex.quote(made.python)} "$@";; esac'
        either.write_text(f'#!/bin/sh\n{runs}\nexec {shlex.quote(self.python)} "$@"\n')
        either.chmod(0o755)
        return made

    def close(self) -> None:
        """End it, and whatever it still runs."""
        if self._server is not None:
            self._server.communicate()  # closes its standard input, which is the sign
        shutil.rmtree(self.folder)
