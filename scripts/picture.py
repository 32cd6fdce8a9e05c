"""A picture of a comment as a pull request shows it: cmark-gfm's HTML, a style like GitHub's, headless Chromium.

    perfguard report .perfguard/report-*.json --as markdown -o comment.md
    python scripts/picture.py comment.md docs/comment.png [--width 920]

Needs the `dev` extra and a Chromium (`apt-get install chromium`). The style is our own; GitHub's differs in detail.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cmarkgfm
from cmarkgfm.cmark import Options

NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")
PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><style>
body { margin: 0; padding: 16px; background: #fff; color: #1f2328; }
body { font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif; }
article { border: 1px solid #d1d9e0; border-radius: 6px; }
article > header { background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: 8px 16px; color: #59636e; }
article > div { padding: 12px 16px; overflow-wrap: break-word; }
h3 { font-size: 1.25em; margin: 4px 0 12px; }
p, table, pre, details { margin: 0 0 14px; }
table { border-collapse: collapse; display: block; width: max-content; max-width: 100%; overflow: auto; }
th, td { border: 1px solid #d1d9e0; padding: 5px 11px; text-align: left; }
tr:nth-child(2n) td { background: #f6f8fa; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 85%; }
code { background: #818b981f; padding: .2em .4em; border-radius: 6px; white-space: break-spaces; }
pre { background: #f6f8fa; padding: 12px; border-radius: 6px; overflow: auto; }
pre code { background: none; padding: 0; font-size: 100%; white-space: pre; }
a { color: #0969da; text-decoration: none; }
</style></head><body><article><header><strong>github-actions</strong> commented</header><div>BODY</div></article>
<script>document.documentElement.dataset.height = document.documentElement.scrollHeight</script></body></html>
"""


def main() -> int:
    options = _parser().parse_args()
    browser = next((path for path in map(shutil.which, NAMES) if path), None)
    if browser is None:
        print("scripts/picture.py: no headless Chromium here; apt-get install chromium", file=sys.stderr)
        return 1
    markdown = options.comment.read_text(encoding="utf-8")
    body = cmarkgfm.github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "comment.html")
        page.write_text(PAGE.replace("BODY", body), encoding="utf-8")
        line = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={folder}/profile"]  # fmt: skip
        seen = _run([*line, f"--window-size={options.width},200", "--dump-dom", page.as_uri()])
        height = int(re.findall(r'data-height="(\d+)"', seen)[0])
        picture = options.picture.resolve()
        picture.parent.mkdir(parents=True, exist_ok=True)
        _run([*line, f"--window-size={options.width},{height}", f"--screenshot={picture}", page.as_uri()])
    print(f"{options.picture}: {options.width} x {height}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comment", type=Path, metavar="COMMENT.md")
    parser.add_argument("picture", type=Path, metavar="PICTURE.png")
    parser.add_argument("--width", type=int, default=920, help="pixels; GitHub's column is about 900 wide")
    return parser


def _run(line: list[str]) -> str:
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=120).stdout


if __name__ == "__main__":
    sys.exit(main())
