"""Golden files, and the one way to write them anew: `python -m tests.render.golden`, then read the difference."""

from __future__ import annotations

from pathlib import Path

import cmarkgfm
from cmarkgfm.cmark import Options

from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Headline
from tests.render.examples import EXAMPLES

FOLDER = Path(__file__).with_name("golden")


def to_html(markdown: str) -> str:
    """As GitHub turns a comment into HTML, before it takes out what it does not allow."""
    html: str = cmarkgfm.github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE)
    return html


def texts() -> dict[str, str]:
    """Every golden comment by file name: one for each headline, and the short form of one of them."""
    found = {f"{headline.name.lower()}.md": render_markdown(overview) for headline, overview in EXAMPLES.items()}
    return found | {"worse-short.md": render_markdown(EXAMPLES[Headline.WORSE], 4000)}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
