"""Lists, reads and replaces the files in the folder of baselines."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from perfguard.model.atomic_files import check_writable, clear_stale, write_atomically
from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline
from perfguard.store.baseline_form import parse

_PART = re.compile(r"[\w+-][\w.+-]*")
_LOCK = ".perfguard-lock"  # A folder, so that git can ignore all of it.
_LOCK_SECONDS = 300.0  # Writing and checking a file of 16 MB took 190 s on a busy machine.


class Store:
    """The baseline files under `root`. A folder is a hardware's slug, or `cpu` for entries that hold on every CPU."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[Path, tuple[bytes, Baseline]] = {}  # Valid while a file has these bytes.

    def path(self, folder: str, suite: str) -> Path:
        """The path of the suite's file.

        Raises:
            BaselineError: a name cannot be part of a path below the root.
        """
        for part in (*folder.split("/"), *suite.split("/")):
            if not _PART.fullmatch(part):
                raise BaselineError(
                    f"{folder}/{suite}: {part!r} cannot name a baseline file; "
                    "use letters, digits, '_', '.', '+' and '-'"
                )
        return self.root / folder / f"{suite}.yaml"

    def load(self, folder: str, suite: str) -> Baseline | None:
        """The folder's baseline of the suite; None if there is no file.

        Raises:
            BaselineError: the file cannot be read as a baseline of this folder.
        """
        path = self.path(folder, suite)
        data = _read(path)
        if data is None:
            return None
        known = self._parsed.get(path)
        if known is None or known[0] != data:
            known = self._parsed[path] = data, parse(data, path, folder, suite)
        return known[1]

    def folders(self) -> list[str]:
        """The folders with any baselines, sorted.

        Raises:
            BaselineError: a file has the name of the folder of baselines.
        """
        if self.root.is_file():
            raise _in_the_way(self.root)
        return sorted({path.parent.name for path in self.root.glob("*/*.yaml")})

    def suites(self, folder: str) -> list[str]:
        """The suites with a file in a folder, sorted."""
        return sorted(path.stem for path in (self.root / folder).glob("*.yaml"))

    def baselines(self, folder: str) -> dict[str, Baseline]:
        """Suite -> the baseline in a folder.

        Raises:
            BaselineError: a file cannot be read.
        """
        loaded = {suite: self.load(folder, suite) for suite in self.suites(folder)}
        return {suite: baseline for suite, baseline in loaded.items() if baseline is not None}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing baselines between a read and the write that follows from it.

        Raises:
            BaselineError: the lock cannot be made, or another process has it for minutes.
        """
        folder = self.root / _LOCK
        try:
            if not folder.is_dir():
                write_atomically(folder / ".gitignore", b"*\n")
            lock = FileLock(folder / "lock", timeout=_LOCK_SECONDS)
            lock.acquire()
        except Timeout as error:
            raise BaselineError(
                f"{self.root}: another process has been writing baselines for {_LOCK_SECONDS:.0f} s; wait for it to end"
            ) from error
        except (FileExistsError, NotADirectoryError) as error:
            raise _in_the_way(self.root) from error
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def check_writable(self, folders: Iterable[str]) -> None:
        """Find out before a run measures whether its update can be written.

        Raises:
            BaselineError: nothing can be written in one of `folders`.
        """
        try:
            for folder in folders:
                check_writable(self.root / folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def replace(self, contents: Mapping[Path, bytes | None]) -> None:
        """Replace each file by its new bytes, or remove it for None. Each file is replaced atomically.

        Raises:
            BaselineError: a file cannot be written; the message names those that were written before.
        """
        done: list[Path] = []
        try:
            for path, data in contents.items():
                if data is None:
                    path.unlink()
                else:
                    write_atomically(path, data)
                done.append(path)
            for folder in {Path(os.path.realpath(path)).parent for path in contents}:
                clear_stale(folder)
        except OSError as error:
            raise self._unwritable(error, done) from error

    def _unwritable(self, error: OSError, done: Sequence[Path] = ()) -> BaselineError:
        written = f" (already written: {', '.join(map(str, done))})" if done else ""
        return BaselineError(
            f"{error.filename or self.root}: cannot write ({error.strerror}){written}; "
            "make room or mend the permissions, then record again"
        )


def _in_the_way(path: Path) -> BaselineError:
    return BaselineError(f"{path}: cannot read, since a file stands where a folder should; move it away")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise _in_the_way(path) from error
    except UnicodeEncodeError as error:
        raise BaselineError(
            f"{str(path)!a}: this locale has no such file names; set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        ) from error
    except OSError as error:
        raise BaselineError(f"{path}: cannot read ({error.strerror}); mend its permissions") from error
