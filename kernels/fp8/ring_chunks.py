"""Which chunks the programs of the ring quantiser (`ring.py`) take: groups, their chunks, and the order of these.

Chunks of a panel lie side by side in the order of items, and neighbouring stripes in front of them, so that what waits
for each other runs at about the same time. Shape suffix: G groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Ends of so many groups stay in registers. With a look at memory for each chunk an H200 takes up to 5 % more, the most
# where groups are of any size, and 3 % less of one group (docs/results.md). Those of 256 would spill.
KEPT = gl.constexpr(64)


class Operand(NamedTuple):
    """x as int32 words, what becomes of it, its width in values; stride_t words a row. All None: there is none."""

    x_ptr: Any
    codes_ptr: Any
    scales_ptr: Any
    width: Any
    stride_t: Any


class Rows(NamedTuple):
    """How rows fall apart: `count` groups that end at offs, or, where offs_ptr is None, as many of `rows` each.

    Attributes:
        rows: of a column of codes; padded_offs_ptr: given where groups begin on multiples of 16 of them.
        stride_g: words from one group of x to the next, without offs.
        most_chunks: of a panel.
    """

    offs_ptr: Any
    padded_offs_ptr: Any
    count: Any
    rows: Any
    stride_g: Any
    most_chunks: Any


class Table(NamedTuple):
    """All groups, chunks and stripes.

    Attributes:
        chunks_G, gaps_G: up to the end of each group; groups that are not there have those of the last.
        starts_G, ends_G: rows of each group, and of the rest behind the last, as `_ends` has them. Nobody reads them
            where there are more than KEPT groups, or no offs; they are no None, which Triton 3.6 cannot return.
        chunks, stripes, all_stripes: all chunks; the stripes of the first operand, and of both.
    """

    chunks_G: Any
    gaps_G: Any
    starts_G: Any
    ends_G: Any
    chunks: Any
    stripes: Any
    all_stripes: Any


class Chunk(NamedTuple):
    """One chunk of a panel.

    Attributes:
        group, stripe: whose; the group after the last is the rest of the buffer.
        start, end: rows of the group in the buffer of codes; gap: so many more than in x.
        first: the row where the chunk begins, of which [low, high), counted from it, are the group's.
        number, chunks: which of the panel's it is.
        place: which of all chunks of a stripe.
    """

    group: Any
    stripe: Any
    start: Any
    end: Any
    gap: Any
    first: Any
    low: Any
    high: Any
    number: Any
    chunks: Any
    place: Any


@gluon.constexpr_function
def _table_layout(groups, warps):  # type: ignore[no-untyped-def]
    """Each warp holds all groups, so that looking one up needs no barrier."""
    return gl.BlockedLayout([groups // 32], [32], [warps], [0])


@gluon.jit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@gluon.jit
def _cut(start, end, most_chunks, HELD: gl.constexpr):  # type: ignore[no-untyped-def]
    """Of rows [start, end): where the first chunk begins, how many, how high. All begin on multiples of 16 rows of the
    buffer of codes, so that these are stored as vectors. One at least, of no row where there is none."""
    base = start // 16 * 16
    span = end - base
    chunks = gl.maximum(gl.minimum(gl.cdiv(span, HELD), most_chunks), 1)
    height = gl.maximum(gl.cdiv(gl.cdiv(span, chunks), 16), 1) * 16
    return base, gl.maximum(gl.cdiv(span, height), 1), height


@gluon.jit
def _ends(rows, group, gap):  # type: ignore[no-untyped-def]
    """Rows [start, end) of groups in the buffer of codes, `gap` more than in x. The group after the last is the rest.

    Ends outside of the buffer are the caller's error, and touch no foreign memory.
    """
    start = gl.load(rows.offs_ptr + group - 1, mask=(group > 0) & (group <= rows.count), other=0) + gap
    end = gl.load(rows.offs_ptr + group, mask=group < rows.count, other=rows.rows) + gap
    start = gl.minimum(gl.maximum(start, 0), rows.rows)
    return start, gl.where(group < rows.count, gl.minimum(gl.maximum(end, start), rows.rows), rows.rows)


@gluon.jit
def table_of(rows, first, second, CONFIG: gl.constexpr, GROUPS: gl.constexpr, WRITES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The table of all groups, GROUPS a power of two that is not below their number. WRITES: padded_offs too."""
    stripes = gl.cdiv(first.width, CONFIG.width)
    all_stripes = stripes
    if second.x_ptr is not None:
        all_stripes += gl.cdiv(second.width, CONFIG.width)
    if rows.offs_ptr is None:
        _, chunks, _ = _cut(rows.rows * 0, rows.rows, rows.most_chunks, CONFIG.held_rows)
        return Table(chunks, chunks, chunks, chunks, chunks * rows.count, stripes, all_stripes)
    else:
        TABLE: gl.constexpr = _table_layout(GROUPS, gl.num_warps())
        group_G = gl.arange(0, GROUPS, TABLE)
        is_group_G = group_G < rows.count
        gaps_G = gl.zeros([GROUPS], gl.int32, TABLE)
        own_G = gaps_G
        if rows.padded_offs_ptr is not None:
            from_G = gl.load(rows.offs_ptr + group_G - 1, mask=is_group_G & (group_G > 0), other=0)
            own_G = (from_G - gl.load(rows.offs_ptr + group_G, mask=is_group_G, other=0)) & 15
            own_G = gl.where(is_group_G, own_G, 0)
            gaps_G = gl.associative_scan(own_G, 0, _add)
        start_G, end_G = _ends(rows, group_G, gaps_G - own_G)
        start, end = _ends(rows, rows.count, gl.max(gaps_G, 0))  # of the rest
        if WRITES:
            gl.store(rows.padded_offs_ptr + group_G, gl.cdiv(end_G, 16) * 16, mask=is_group_G)
        _, chunks_G, _ = _cut(start_G, end_G, rows.most_chunks, CONFIG.held_rows)
        chunks_G = gl.associative_scan(gl.where(is_group_G, chunks_G, 0), 0, _add)
        chunks = gl.max(chunks_G, 0)
        _, rest, _ = _cut(start, end, rows.most_chunks, CONFIG.held_rows)
        chunks += gl.where(end > start, rest, 0)
        if GROUPS <= KEPT:
            return Table(chunks_G, gaps_G, start_G, end_G, chunks, stripes, all_stripes)
        else:
            return Table(chunks_G, gaps_G, gaps_G, gaps_G, chunks, stripes, all_stripes)


@gluon.jit
def chunk_of(item, rows, table, CONFIG: gl.constexpr, GROUPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """What number `item` of all chunks is: neighbouring stripes first, then the chunks of a panel, then groups."""
    block = item // (table.chunks * CONFIG.stripes)
    stripes = gl.minimum(table.all_stripes - block * CONFIG.stripes, CONFIG.stripes)
    in_block = item - block * (table.chunks * CONFIG.stripes)
    place = in_block // stripes
    stripe = block * CONFIG.stripes + (in_block - place * stripes)
    if rows.offs_ptr is not None:
        before_G = table.chunks_G <= place
        group = gl.minimum(gl.sum(before_G.to(gl.int32), 0), rows.count)
        gap = place * 0
        if rows.padded_offs_ptr is not None:
            gap = gl.max(gl.where(before_G, table.gaps_G, 0), 0)
        if GROUPS > KEPT:
            start, end = _ends(rows, group, gap)
        else:
            is_own_G = gl.arange(0, GROUPS, _table_layout(GROUPS, gl.num_warps())) == group
            start = gl.max(gl.where(is_own_G, table.starts_G, 0), 0)
            end = gl.max(gl.where(is_own_G, table.ends_G, 0), 0)
            if group == GROUPS:  # the rest, behind groups that fill the table
                start, end = _ends(rows, group, gap)
        number = place - gl.max(gl.where(before_G, table.chunks_G, 0), 0)
        base, chunks, height = _cut(start, end, rows.most_chunks, CONFIG.held_rows)
    else:
        start = place * 0
        end = rows.rows
        gap = place * 0
        base, chunks, height = _cut(start, end, rows.most_chunks, CONFIG.held_rows)
        group = place // chunks
        number = place - group * chunks
    first = base + number * height
    low = gl.maximum(first, start) - first
    high = gl.minimum(end - first, height)
    return Chunk(group, stripe, start, end, gap, first, low, high, number, chunks, place)


@gluon.jit
def operand_of(stripe, first, second, table, CONFIG: gl.constexpr):  # type: ignore[no-untyped-def]
    """The operand that a stripe belongs to, the number of the stripe's first pair in it, and in both side by side."""
    pair0 = stripe * (CONFIG.width // 2)
    both_pair0 = pair0
    x_ptr = first.x_ptr
    codes_ptr = first.codes_ptr
    scales_ptr = first.scales_ptr
    width = first.width
    stride_t = first.stride_t
    if second.x_ptr is not None:  # noqa: SIM102  (the compiler decides this one, the program the next)
        if stripe >= table.stripes:
            pair0 -= table.stripes * (CONFIG.width // 2)
            both_pair0 = first.width // 2 + pair0
            x_ptr = second.x_ptr
            codes_ptr = second.codes_ptr
            scales_ptr = second.scales_ptr
            width = second.width
            stride_t = second.stride_t
    return Operand(x_ptr, codes_ptr, scales_ptr, width, stride_t), pair0, both_pair0
