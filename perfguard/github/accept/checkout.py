"""Checks that a report is of this checkout's code, since values of other code must not become its baselines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfguard.model.errors import UsageError
from perfguard.model.records import Report
from perfguard.session.pairing.worktrees import changed_code, find_repository

_SHA = re.compile(r"[0-9a-f]{7,64}")


def check_commit(report: Report, folder: Path, data: Sequence[Path]) -> None:
    """Compare the report's commit with the checkout around `folder`; documents and perfguard's own files may differ.

    Args:
        data: folders of perfguard's own (baselines, reports).

    Raises:
        UsageError: the checkout does not know the commit, or its tracked files hold other code.
    """
    commit = (report.commit or "").removesuffix("+")
    try:
        repository = find_repository(folder)
    except UsageError:  # no git, no commits
        return
    if not commit:  # measured without git
        return
    known = repository.commit(commit) if _SHA.fullmatch(commit) else None
    if known is None:
        raise UsageError(
            f"the report of {report.hardware.slug} measured {commit[:12]!r}, which is no commit of this clone; "
            "fetch it, or measure this checkout"
        )
    if (report.commit or "").endswith("+") and known == repository.commit("HEAD"):
        return  # its uncommitted changes are unknown, but most likely those made here
    code = changed_code(repository, known, data)
    if code:
        more = f" and {len(code) - 1} more" if len(code) > 1 else ""
        raise UsageError(
            f"the report of {report.hardware.slug} measured {known[:12]}, from which this checkout differs in "
            f"{code[0]}{more}; git checkout {known[:12]}, or measure this checkout"
        )
