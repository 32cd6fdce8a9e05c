"""The outputs of `perfguard report --as`, one per file.

Each file in this folder is an output of the same name. It is imported when the output is requested.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from perfguard.model.modules import names_in
from perfguard.render.overview import Overview


class Output(Protocol):
    """The interface of an output module: a pure function from all lanes of a commit to text.

    A module with `ALONE = True` shows a single report alone, even if the settings expect other lanes. The lanes come
    with the currently stored baselines.
    """

    def render(self, overview: Overview) -> str:
        """The text of the overview.

        Raises:
            UsageError: the output cannot show these lanes.
        """


def output_names() -> list[str]:
    """The names that `--as` takes."""
    return [name.replace("_", "-") for name in names_in(__name__)]


def output(name: str) -> Output:
    """The output of one of `output_names`."""
    return cast(Output, importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
