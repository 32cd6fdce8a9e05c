from __future__ import annotations

from collections.abc import Mapping, Sequence


def write_summary(environ: Mapping[str, str], sections: Sequence[str], pointer: str) -> str:
    """Append Markdown to the job's summary, GITHUB_STEP_SUMMARY; it takes 1 MiB a step and drops the rest.

    Args:
        sections: whole ones are written as long as they fit.
        pointer: written in place of those that do not fit: where the rest is.

    Returns:
        What went wrong, empty if nothing did.
    """
    raise NotImplementedError


def warning_command(message: str, title: str = "") -> str:
    """A line that shows `message` as a warning of the job."""
    raise NotImplementedError


def without_commands(text: str) -> str:
    """Lines for a job's log that hold text of strangers: the runner takes none of them for a command."""
    raise NotImplementedError
