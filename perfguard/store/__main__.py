"""`python -m perfguard.store baselines` writes every file of a folder in today's form; what the files hold stays."""

from __future__ import annotations

import sys
from pathlib import Path

from perfguard.model.errors import BaselineError, ExitStatus
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_update import rewrite


def main(arguments: list[str]) -> int:
    """Rewrite the folders in `arguments`; the exit status is one of `perfguard.ExitStatus`."""
    folders = [Path(argument) for argument in arguments]
    if not folders or not all(folder.is_dir() for folder in folders):
        print("usage: python -m perfguard.store FOLDER: a folder of baselines", file=sys.stderr)
        return int(ExitStatus.USAGE_ERROR)
    try:
        written = [path for folder in folders for path in rewrite(Store(folder))]
    except BaselineError as error:
        print(f"perfguard: {error}", file=sys.stderr)
        return int(ExitStatus.USAGE_ERROR)
    for path in written:
        print(f"written: {path}")
    return int(ExitStatus.PASSED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
