"""Nothing that a stranger wrote is ever Markdown: proven on the renderer that GitHub's own was forked into."""

from __future__ import annotations

import html
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfguard.render.escaping import MOST_CHARACTERS, clean, code, fenced, is_plain, link
from tests.render.golden import to_html

SPECIAL = "@._:/#|<>[]()*~!&;\\-`\"'=+$%^{}0aZw \n\r\t\u2028\u202e\u200b\u0000é漢🔥"
HOSTILE = st.one_of(
    st.text(st.sampled_from(SPECIAL), max_size=60),
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["@org/team", "a@b.c", " www.x.y", "https://x.y", "#1", "GH-1", "[x](y)", "![x](y)", "__x__", "<img>",
             "<!--", "-->", "</code>", "</details>", "|", "`", "\\|", "\n\n# h\n", "\n- l", "```", "::error::", "&amp;", "&#64;"]
        ),
        max_size=8,
    ).map("".join),
)  # fmt: skip

# Where a name may stand, and how many cells the line's row has then.
PLACES = {
    "cell": "| a | b | c |\n| --- | --- | --- |\n| x | {} | z |",
    "first cell": "| a | b |\n| --- | --- |\n| {} | z |",
    "heading": "### {} after",
    "item": "- {}",
    "quote": "> {}",
    "strong": "**{}** after",
    "summary": "<details><summary>{}, more</summary>\n\ntext\n\n</details>",
    "paragraph": "{}",
}
OWN = {"table", "thead", "tbody", "tr", "th", "td", "h3", "ul", "li", "blockquote", "p", "strong", "details", "summary"}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@given(text=HOSTILE)
@example("`|`")
@example("a\x85b\u2029c")
@example("x" * 10_000)
@example("@" * 300)
def test_a_name_is_one_inert_code_element(place: str, text: str) -> None:
    shown = to_html(place.format(code(text)))
    empty = to_html(place.format(code("")))
    assert re.sub("<code>.*?</code>", "<code></code>", shown, flags=re.DOTALL) == empty  # nothing leaves the element
    (inside,) = re.findall("<code>(.*?)</code>", shown, flags=re.DOTALL)
    assert set(re.findall("<[^>]*>", inside)) <= {"<span>", "</span>", "<wbr>"}
    assert html.unescape(re.sub("<[^>]*>", "", inside)) == clean(text)
    assert set(re.findall(r"<(\w+)", shown)) <= OWN | {"code", "span", "wbr"}


@given(text=HOSTILE)
def test_a_clean_name_is_one_visible_line(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) <= MOST_CHARACTERS
    assert not {unicodedata.category(character) for character in cleaned} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert clean(cleaned) == cleaned


def test_cleaning_folds_drops_and_cuts() -> None:
    assert clean("a\r\n\tb\u202ec\ud800") == "a bc"
    assert clean("x" * 201) == "x" * 199 + "…"
    assert clean("\u200b" * 5000 + "x") == "…"
    assert clean("x" * 200) == "x" * 200


def test_encoding() -> None:
    assert code("f[1]/b =-") == "<code>f&#91;1&#93;/b =-</code>"
    assert code("quantize_transpose_3d_reduction[1]") == (
        "<code>quantize&#95;<wbr>transpose&#95;<wbr>3d&#95;<wbr>reduction<wbr>&#91;1&#93;<wbr></code>"
    )
    assert code("a@b") == "<code>a<span>&#64;</span>b</code>"


@given(lines=st.lists(HOSTILE, min_size=1, max_size=3))
def test_commands_stay_in_their_block(lines: list[str]) -> None:
    shown = to_html(f"{fenced(lines, 'sh')}\n\nafter")
    (inside,) = re.fullmatch(
        r'<pre lang="sh"><code>(.*)\n</code></pre>\n<p>after</p>\n', shown, flags=re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert html.unescape(inside).split("\n") == [clean(line, 1000) for line in lines]


@pytest.mark.parametrize("text", ["", "-p evil", "--rootdir=/", "@file", "a\nb", "a\u202eb", "x" * 201])
def test_what_nobody_should_paste(text: str) -> None:
    assert not is_plain(text)
    assert is_plain("tests/test_norms.py::test_rms[64 x; rm]")


def test_links_are_ours() -> None:
    assert link("run", "https://github.com/o/r/actions/runs/1") == "[run](https://github.com/o/r/actions/runs/1)"
    assert link("run", "/o/r/pull/1") == "[run](/o/r/pull/1)"
    assert link("run", "https://x/) ![y](z") == "[run](https://x/%29%20%21%5By%5D%28z)"
    for url in ("javascript:alert(1)", "//other.host/x", "data:text/html,x", ""):
        assert link("run", url) == "run"
