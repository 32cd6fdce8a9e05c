"""Escapes untrusted text for every output: terminals and logs with `clean`, Markdown with `code`, JSON with `as_json`.

Test ids, device names, versions, paths and messages are untrusted. A terminal obeys their control characters, which may
write the clipboard. In Markdown none may mention, link, format, or break a row. That needs strictness: inline HTML does
not stop inline Markdown, a raw `www.` becomes a link, and GitHub links e-mail addresses after decoding entities.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from urllib.parse import quote

MOST_CHARACTERS = 200
LONG = 24  # Longer names may be broken into several lines.
_BREAKS = re.compile(r"[\r\n\v\f\x85\u2028\u2029\t]+")
_ENCODED = re.compile(r"[^A-Za-z0-9 =/-]")
# Readers cannot see controls, formats (bidi, zero width), surrogates, private and unassigned characters.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def clean(text: str, most: int | None = MOST_CHARACTERS) -> str:
    """`text` on one line, without invisible characters, cut with `…` to at most `most` characters (None: not cut)."""
    most = len(text) if most is None else most
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    line = _BREAKS.sub(" ", text[: 4 * most])  # The rest would be cut off.
    visible = "".join(one for one in line if unicodedata.category(one) not in _INVISIBLE)
    return visible if len(visible) <= most and len(text) <= 4 * most else f"{visible[: most - 1]}…"


def as_json(text: str) -> str:
    """Readable JSON of the same value, with escapes in place of invisible characters, which a terminal would obey."""
    return re.sub(r"[^\n -~]", lambda one: one[0] if one[0].isprintable() else json.dumps(one[0])[1:-1], text)


@lru_cache(maxsize=2048)  # A comment repeats its metrics, lanes and reasons.
def code(text: str, most: int = MOST_CHARACTERS) -> str:
    """Untrusted text as an inline code element: cleaned, cut, and with every special character encoded.

    A long name may break at `_`, `[` and `]`, so that tables fit the page. Copying yields the whole name.
    """
    cleaned = clean(text, most)
    return f"<code>{_ENCODED.sub(_breakable if len(cleaned) > LONG else _entity, cleaned)}</code>"


def _entity(match: re.Match[str]) -> str:
    entity = f"&#{ord(match[0])};"
    # A lone entity of @ would still be linked inside an e-mail address; the element splits it.
    return f"<span>{entity}</span>" if match[0] == "@" else entity


def _breakable(match: re.Match[str]) -> str:
    if match[0] == "[":
        return f"<wbr>{_entity(match)}"
    return f"{_entity(match)}<wbr>" if match[0] in "_]" else _entity(match)


def fenced(lines: list[str], language: str = "") -> str:
    """Lines as a code block to copy, with a fence longer than any run of backticks inside."""
    text = "\n".join(clean(line, 1000) for line in lines)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def is_plain(text: str) -> bool:
    """Whether a user can safely paste `text`, quoted, after a command: cleaning does not change it, and neither pytest
    nor a shell command parses it as an option or a file of arguments."""
    return clean(text) == text and bool(text) and text[0] not in "-@"


def link(text: str, url: str) -> str:
    """A Markdown link; the text alone if `url` is neither http(s) nor a host-relative path."""
    if not re.match(r"https?://|/(?!/)", url):
        return text
    return f"[{text}]({quote(url, safe=':/?#&=%+,;~')})"
