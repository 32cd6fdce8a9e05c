"""A headless Chromium, where there is one: pages are opened from files, with every host name unresolvable."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")


def dump(page: Path, fragment: str = "", *arguments: str) -> str:
    """The page's document once its script ran."""
    return _run(page, fragment, "--dump-dom", *arguments)


def photograph(page: Path, picture: Path, width: int, height: int, *arguments: str) -> None:
    """A picture of the page, in PNG."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    size = (f"--window-size={width},{height}", "--hide-scrollbars")
    _run(page, "", f"--screenshot={picture.resolve()}", *size, *arguments)


def _run(page: Path, fragment: str, *arguments: str) -> str:
    """What the browser prints; skips the test, by name, where none is installed."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("NOT TESTED in a browser: none installed; apt-get install chromium")
    line = [
        found, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={page.parent / 'profile'}", *arguments, f"{page.as_uri()}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(page: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What `script` left in `seen` after it ran inside a copy of the page, which allows it to."""
    text = page.read_text(encoding="utf-8")
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    tail = (
        f"<script>const seen = {{}};\n{script}\ndocument.documentElement.dataset.seen = JSON.stringify(seen);</script>"
    )
    copy = page.with_name("probe.html")
    copy.write_text(text.replace("</body>", f"{tail}</body>"), encoding="utf-8")
    (seen,) = re.findall('data-seen="([^"]*)"', dump(copy, "", *arguments))
    answer: dict[str, Any] = json.loads(html.unescape(seen))
    return answer
