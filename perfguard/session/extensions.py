"""Installed extensions of all kinds: what a run needs is loaded at its start, and `perfguard doctor` lists them."""

from __future__ import annotations

from collections.abc import Iterator

from perfguard.measure import metrics, timers
from perfguard.measure.devices import vendors
from perfguard.measure.devices.vendors import Finding
from perfguard.model.errors import UsageError
from perfguard.render import outputs

_OF_A_RUN = (metrics.KIND, vendors.KIND, timers.KIND)


def require_usable() -> None:
    """Load what is installed for measuring, so that one error ends the run instead of one in every case.

    Raises:
        UsageError: an installed metric, vendor or timer cannot be used.
    """
    for kind in _OF_A_RUN:
        for each in kind.installed():
            each.load()


def findings() -> Iterator[Finding]:
    """A finding for every installed extension; nothing for our own."""
    for kind in (*_OF_A_RUN, outputs.KIND):
        for each in kind.installed():
            topic = f"{kind.noun} {each.name}"
            try:
                each.load()
            except UsageError as error:
                said, _, step = str(error).rpartition("; ")
                yield Finding(topic, "", said, step)
            else:
                yield Finding(topic, each.distribution)
