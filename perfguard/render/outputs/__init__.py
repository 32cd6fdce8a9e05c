"""What `perfguard report --as` can make of an overview, one a file.

An output is found by being in this folder, where its file's name is its name, or by an entry point `perfguard.outputs`
of an installed package. None is imported before it is asked for.
"""

from __future__ import annotations

from typing import Protocol, cast

from perfguard.model.errors import UsageError
from perfguard.model.extensions import Kind
from perfguard.render.overview import Overview

KIND = Kind("output", __name__, "perfguard.outputs", needs=("render",))


class Output(Protocol):
    """The interface of an output module: a pure function from all lanes of a commit to text.

    `ALONE = True`, if it is there: a single report is shown alone, whatever other lanes the settings expect. The lanes
    come with the baselines that are stored now.
    """

    def render(self, overview: Overview) -> str:
        """The text.

        Raises:
            UsageError: the output cannot show these lanes.
        """


def output_names() -> list[str]:
    """The names that `--as` takes."""
    return sorted({*_own_names(), *(each.name for each in KIND.installed())})


def output(name: str) -> Output:
    """The output of this name.

    Raises:
        UsageError: it was installed and cannot be used, or two have the name.
    """
    own = _own_names()
    installed = [each for each in KIND.installed() if each.name == name]
    if len(installed) + (name in own) > 1:
        by = installed[-1]
        raise UsageError(
            f"{by.distribution}: its output {name!r} has the name of another one; pip uninstall {by.project}"
        )
    return cast(Output, installed[0].load() if installed else KIND.own_module(own[name]))


def _own_names() -> dict[str, str]:
    """Name -> the file's, without its ending."""
    return {name.replace("_", "-"): name for name in KIND.own_names()}
