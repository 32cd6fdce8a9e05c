"""What `perfguard report --as` can make of an overview, one a file.

An output is found because it is in this folder; its file's name is its name. None is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from perfguard.model.modules import names_in
from perfguard.render.overview import Overview


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
    return [name.replace("_", "-") for name in names_in(__name__)]


def output(name: str) -> Output:
    """The output of one of `output_names`."""
    return cast(Output, importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
