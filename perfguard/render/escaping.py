"""The one way in which text that a stranger may have written gets into Markdown.

Test ids, device names, versions, paths, messages and commit ids all pass through `code` (or `fenced`), so that none
of them mentions, links, formats, or breaks a table out of its row. Why it is this strict: inline HTML does not stop
inline Markdown, a raw `www.` becomes a link, and e-mail addresses are linked after entities have been decoded.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from urllib.parse import quote

MOST_CHARACTERS = 200
LONG = 24  # characters from which a name may break
_BREAKS = re.compile(r"[\r\n\v\f\x85\u2028\u2029\t]+")
_ENCODED = re.compile(r"[^A-Za-z0-9 =/-]")
# Controls, formats (bidi, zero width), surrogates, private use and unassigned: nothing that a reader would see.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def clean(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` on one line, without invisible characters, at most `most` characters long (the last is then `…`)."""
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    line = _BREAKS.sub(" ", text[: 4 * most])  # whatever is cut off need not be looked at
    visible = "".join(filter(_is_visible, line))
    return visible if len(visible) <= most and len(text) <= 4 * most else f"{visible[: most - 1]}…"


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE


@lru_cache(maxsize=2048)  # a comment repeats its metrics, lanes and reasons
def code(text: str, most: int = MOST_CHARACTERS) -> str:
    """Untrusted text as an inline code element: cleaned, cut, and every character that means something encoded.

    A long name may break behind its joints, so that a table of such names fits the page; copied, it is whole.
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
    """Lines as a code block, for commands to copy: its fence is longer than any run of backticks inside."""
    text = "\n".join(clean(line, 1000) for line in lines)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def is_plain(text: str) -> bool:
    """Whether a person may paste `text`, quoted, behind a command: cleaning changes nothing, and neither pytest nor
    a shell's command takes it for an option or for a file of arguments."""
    return clean(text) == text and bool(text) and text[0] not in "-@"


def link(text: str, url: str) -> str:
    """A Markdown link that we lay out ourselves; only the text where `url` is no http(s) or relative address."""
    if not re.match(r"https?://|/(?!/)", url):
        return text
    return f"[{text}]({quote(url, safe=':/?#&=%+,;~')})"
