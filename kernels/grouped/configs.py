"""The committed configurations of the grouped product: at most four a form and architecture.

A choice is a pure function of (architecture, form, element size, outer width, alignment). It never depends on a count
of rows or groups, and nothing is timed in a user's process. Every candidate is correct for every input; they differ
in the order of summation alone.

Entries without figures have not been swept: they are what the architecture's limits suggest, and stand here so that a
sweep changes a table and no kernel.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Form = Literal["rows", "groups"]  # (R, K) x (E, K, N) -> (R, N), and (K, R) x (R, N) -> (E, K, N)
Impl = Literal["auto", "torch", "triton", "loop"]

# What "auto" tries first, by form. Where PyTorch's product runs natively it is the choice that needs no trust in
# a compiler; an architecture and form where ours is ahead has an entry, which holds for aligned 16-bit operands: others
# are slower here than with the copies that PyTorch's is given. Figures: _HOPPER_GROUPS.
_USUAL: tuple[Impl, ...] = ("torch", "triton", "loop")
PREFERENCES: dict[tuple[str, Form], tuple[Impl, ...]] = {("sm_90", "groups"): ("triton", "torch", "loop")}


def preference(arch: str, form: Form, aligned: bool = True) -> tuple[Impl, ...]:
    """The implementations in the order in which "auto" asks whether they run."""
    return PREFERENCES.get((arch, form), _USUAL) if aligned else _USUAL


class Config(NamedTuple):
    """One way to run a grouped product. A program computes tiles of `height` x `width`, `depth` at a time."""

    height: int  # rows of the output's tile: tokens in form "rows", inner widths in form "groups"
    width: int  # columns of the output's tile
    depth: int  # of the contraction, at a time
    warps: int
    stages: int  # of the contraction that are in flight
    band: int = 8  # tiles above each other that run side by side, and so share their columns in the cache
    programs: int = 1  # a multiprocessor; on a CPU, at all
    descriptors: bool = False  # load whole tiles by the bulk copy engine where operands are aligned
    flatten: bool = False  # one pipeline through all tiles: the next one's loads start under this one's stores
    emulate: bool = False  # bf16 by arithmetic in fp32
    specialised: bool = False  # a warp of its own loads; `warps` is what each half of a tile has

    def shared_memory_bytes(self, itemsize: int) -> int:
        """What the stages in flight take at least, and a tile on its way out; the compiler adds little."""
        tile = self.height * self.width if self.specialised else 0
        return (self.stages * self.depth * (self.height + self.width) + tile) * itemsize


# 16-bit operands. A tile of 128 x 256 reads least for each product: two warp groups of four warps, 64 rows each
# with the accumulators in registers; four stages of 48 KB fill the 227 KB.
_HOPPER = (
    Config(height=128, width=256, depth=64, warps=8, stages=4, descriptors=True),
    Config(height=128, width=256, depth=64, warps=8, stages=3, descriptors=True, flatten=True),
    Config(height=128, width=128, depth=64, warps=4, stages=3, descriptors=True, programs=2),
    Config(height=128, width=256, depth=64, warps=8, stages=4),
)
# Form "groups": a tile has few steps, so what lies between two of them counts (`specialised.py`). On an H200
# (2026-11-22), us: 16 groups of 1,040 rows, 8192 x 5120, take 1936 with the first, 2582 and 2451 with the next two and
# 2231 with torch's; 64 of 512, 1408 x 2048, take 286, 376, 349 and 380, 2048 x 1408 301, 354, 388 and 378; 128 of 512,
# 768 x 2048, take 319, 418, 388 and 387. Steps of 64 rows, of which three or four fit, cost 2 to 8 % more, and bands of
# 4 and of 16 are within 1 % of bands of 8.
_HOPPER_GROUPS = (
    Config(height=128, width=256, depth=32, warps=4, stages=6, specialised=True),
    Config(height=128, width=256, depth=64, warps=8, stages=4, descriptors=True),
    Config(height=128, width=128, depth=64, warps=4, stages=3, descriptors=True, programs=2),
    Config(height=128, width=256, depth=64, warps=8, stages=4),
)
# 64 KB of shared memory of which the compiler keeps one stage less than it counts; waves of 64.
_CDNA3 = (
    Config(height=128, width=128, depth=64, warps=4, stages=2),
    Config(height=256, width=128, depth=32, warps=8, stages=2),
)
_CDNA4 = (
    Config(height=128, width=128, depth=64, warps=4, stages=2),
    Config(height=256, width=128, depth=64, warps=8, stages=2),
)
# The accumulators have a memory of their own, so registers do not limit the tile.
_BLACKWELL = (
    Config(height=128, width=256, depth=64, warps=8, stages=4, descriptors=True),
    Config(height=128, width=128, depth=64, warps=4, stages=4, descriptors=True),
)
# Everything else with 16-bit operands: fits 99 KB and 64 KB.
_GENERAL = (
    Config(height=128, width=128, depth=32, warps=8, stages=3),
    Config(height=64, width=128, depth=32, warps=4, stages=3, programs=2),
)
_TABLE: dict[str, tuple[Config, ...]] = {
    "sm_90": _HOPPER,
    "sm_100": _BLACKWELL,
    "gfx942": _CDNA3,
    "gfx950": _CDNA4,
    # The interpreter: few programs, so that each walks several tiles, and tiles smaller than small inputs. It
    # multiplies the bit patterns of bf16 and cuts it off where it should round (Triton 3.6 and 3.9).
    "cpu": (
        Config(height=32, width=32, depth=32, warps=4, stages=1, band=2, programs=3, emulate=True),
        Config(height=16, width=32, depth=16, warps=4, stages=1, band=1, programs=5, descriptors=True, emulate=True),
    ),
}
# fp32 operands are multiplied in fp32: no matrix unit does that, so tiles are small.
_WIDE = (
    Config(height=64, width=64, depth=32, warps=4, stages=2, programs=2),
    Config(height=64, width=64, depth=16, warps=4, stages=2, programs=2),
)
# Rows that start anywhere are read element by element, each with an address of its own in a register: small tiles.
_UNALIGNED = (
    Config(height=64, width=64, depth=32, warps=8, stages=2, programs=2),
    Config(height=64, width=32, depth=32, warps=4, stages=2, programs=2),
)


def candidates(arch: str, form: Form, itemsize: int, outer: int, aligned: bool) -> tuple[Config, ...]:
    """Candidates for outputs `outer` columns wide, the default first; both forms have as many.

    `aligned`: both operands can be read in whole units of 16 bytes, wherever a group starts. A width that a tile
    of 256 fits badly takes the narrow one first: 1408 columns are 5.5 such tiles, but 11 of 128.
    """
    if arch == "cpu":
        return _TABLE["cpu"]
    configs = _UNALIGNED if not aligned else _WIDE if itemsize == 4 else _TABLE.get(arch, _GENERAL)
    if configs is _HOPPER and form == "groups" and outer % 8 == 0:  # rows of the output are whole units, too
        configs = _HOPPER_GROUPS
    # What a specialised one gains is more than it loses at 1408 columns, a tenth; nothing past that was measured.
    configs = tuple(sorted(configs, key=lambda c: waste(outer, c.width) > (1 / 10 if c.specialised else 1 / 16)))
    if form == "groups":
        # Every tile of a group reads the same rows; a band of four leaves both operands' share in the cache.
        configs = tuple(c if c.specialised else c._replace(band=min(c.band, 4)) for c in configs)
    return configs


def waste(outer: int, width: int) -> float:
    """The share of columns computed past the end."""
    return -(-outer // width) * width / max(outer, 1) - 1
