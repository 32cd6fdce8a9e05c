"""Types what a page of the documentation tells its reader to type, line by line, and compares what it prints.

A page's blocks, by the language that stands behind their fence:

- `sh`: commands, of which each runs in the folder where the last one ended. `# exit status 10` behind one names its
  status, 0 if left out; `# not run here` behind one says that it needs something that a test does not have.
- `text`: lines that the `sh` block before it prints, one below the other. A line `…` stands for any number of lines,
  and `…` in a line for any text.
- `python` and `toml` below a sentence that ends with a file's name in code and a colon: the file.
- others are shown to the reader alone.

Times, by how much they changed, process pairs, commits, versions and widths of columns are not compared.

    python -m tests.flows.pages docs/start.md       types it in a new folder, and prints the seconds of each command
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = f"{0xABC:040x}"  # The commit of perfguard that `perfguard init` lets CI install.
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./-]+\.\w+)`[^`\n]*:\Z")
_STATUS = re.compile(r"#.*exit status (\d+)")
_VARIES = (
    (re.compile(r"\b\d[\d.,]*(?: to \d[\d.,]*)? ?(?:ns|µs|ms|s|seconds)\b"), "TIME"),
    (re.compile(r"(?<!\S)\(?[+-]\d+\.\d+"), "CHANGE"),
    (re.compile(r"\d+ process pairs"), "PAIRS"),
    (re.compile(r"torch==\S+ triton==\S+(?: --extra-index-url \S+)?"), "PINS"),
    (re.compile(r'python-version: "[\d.]+"'), "PYTHON"),
    (re.compile(r"<40-digit commit>|\b(?=[a-f]*\d)[0-9a-f]{7,40}\b"), "COMMIT"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Typed:
    """A command of a page, what it printed, and how many seconds it took."""

    command: str
    output: str
    seconds: float


@dataclass
class Reader:
    """Somebody who types a page.

    Attributes:
        folder: where the next command runs.
        environment: that of all commands.
    """

    folder: Path
    environment: Mapping[str, str]
    typed: list[Typed] = field(default_factory=list)

    def read(self, page: str, until: str = "") -> None:
        """Type a page, up to the heading `until` if that is given.

        Raises:
            AssertionError: a command has another status, or prints something else than the page shows.
        """
        first = end = 0
        for block in _BLOCK.finditer(page):
            between, end = page[end : block.start()], block.end()
            if until and re.search(rf"^#+ {re.escape(until)}$", between, re.MULTILINE):
                return
            kind, body = block[1], block[2]
            if kind == "sh":
                first = len(self.typed)
                for command in commands(body):
                    self._type(command)
            elif kind == "text":
                compare(body, "".join(each.output for each in self.typed[first:]))
            elif kind in ("python", "toml") and (named := _FILE.search(between.rstrip())):
                path = self.folder / named[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body, encoding="utf-8")

    def _type(self, command: str) -> None:
        if "# not run here" in command:
            return
        with tempfile.NamedTemporaryFile("r") as ended:
            line = f"{command}\nstatus=$?; pwd >{ended.name}; exit $status"
            started = time.perf_counter()
            done = subprocess.run(
                ["bash", "-c", line], cwd=self.folder, env=dict(self.environment), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            self.typed.append(Typed(command, done.stdout, time.perf_counter() - started))
            self.folder = Path(ended.read().strip() or self.folder)
        wanted = _STATUS.search(command)
        assert done.returncode == int(wanted[1] if wanted else 0), f"$ {command}\n{done.stdout}"


def commands(body: str) -> Iterator[str]:
    """The commands of a block, also those that go on in the next line."""
    for line in re.sub(r"\\\n", " ", body).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def compare(shown: str, printed: str) -> None:
    """Look for what a page shows in what was printed.

    Raises:
        AssertionError: it is not there.
    """
    pattern = ""
    for line in _without_what_varies(shown):
        pattern += "(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"
    printed = "".join(f"{line}\n" for line in _without_what_varies(printed))
    assert re.search(f"^{pattern}", printed, re.MULTILINE), (
        f"the page shows\n\n{shown}\nand this was printed\n\n{printed}"
    )


def _without_what_varies(text: str) -> list[str]:
    for varies, name in _VARIES:
        text = varies.sub(name, text)
    return [line.strip() for line in text.splitlines()]


def environment_in(folder: Path, python: str) -> dict[str, str]:
    """The environment of a reader: `pytest`, `perfguard` and `python` of this checkout, git with a name, and nothing of
    the CI service or the run of pytest around it.

    Args:
        folder: takes the commands, and what is temporary.
        python: the interpreter.
    """
    commands, noted = folder / "bin", folder / "site" / "perfguard-0.dist-info"
    for made in (commands, noted, folder / "tmp"):
        made.mkdir(parents=True)
    for name, line in {"pytest": "-P -m pytest", "perfguard": "-P -m perfguard", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{python}" {line} "$@"\n')
        (commands / name).chmod(0o755)
    # pip notes where it has taken a package from; this checkout may have no commit that CI could install.
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: perfguard\nVersion: 0\n")
    (noted / "direct_url.json").write_text(
        f'{{"url": "https://github.com/OWNER/perfguard", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}'
    )
    (noted / "entry_points.txt").write_text("[pytest11]\nperfguard = perfguard.plugin\n")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "GIT_", "PYTEST_", "PYTHON")) and name != "CI"
    }
    git = {"user.name": "somebody", "user.email": "somebody@localhost", "init.defaultBranch": "main"}
    for number, (key, value) in enumerate(git.items()):
        kept |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return kept | {
        "GIT_CONFIG_COUNT": str(len(git)),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(noted.parent), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # Python takes a file edited within a second, and as long, for the one before.
        "TMPDIR": str(folder / "tmp"),
        "COLUMNS": "120",
    }


def main() -> None:
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "typed").mkdir()
            reader = Reader(Path(folder) / "typed", environment_in(Path(folder), sys.executable))
            with contextlib.ExitStack() as after:
                after.callback(lambda r=reader: [print(f"{each.seconds:5.1f} s  {each.command}") for each in r.typed])
                reader.read(Path(name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
