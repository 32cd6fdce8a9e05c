"""Of section 1.1: what kernels become on chips that are not here."""

from __future__ import annotations

from benchmarks.planting import Edit, Expect, Mutant, Rewrite, changed

FP8, OPERATORS = "kernels/fp8/configs.py", "kernels/operators/configs.py"
WHOLE_ROWS = "        RowsConfig(rows=1, block=head, tail=tail, whole=True, warps={}),"


def warps_of_whole_rows(wanted: str) -> Edit:
    """Those of the configuration that holds a row."""
    return Edit(FP8, WHOLE_ROWS.format("warps"), WHOLE_ROWS.format(wanted))


HALF_THE_WARPS = warps_of_whole_rows("max(1, warps // 2)")


another_triton = Rewrite("baselines/*/*.yaml", r"triton: [0-9.]+", "triton: 3.5.1")  # records of another version


MUTANTS = [
    Mutant(
        name="one width with half the warps",
        classes=("K01",),
        imitates="vllm#43153 (-45 % tok/s), triton#9757 (+35 %): the same source, compiled to worse code",
        suite="cross",
        apply=(HALF_THE_WARPS,),
        shown={  # an H200 is as fast with them
            place: Expect("CHANGED", "sm_90.resident_warps", cases=("rows[widest]/forward",), also=("*",))
            for place in ("G", "X")
        },
    ),
    Mutant(
        name="one width in a single warp",
        classes=("K01",),
        imitates="vllm#43153 (-45 % tok/s), triton#9757 (+35 %): the same source, compiled to worse code",
        suite="cross",
        apply=(warps_of_whole_rows("1"),),
        shown={
            "G": Expect("SLOWER", "device_time_us", cases=("rows[widest]/forward",), says=("because: ",), also=("*",)),
        },
    ),
    Mutant(
        name="one width with half the warps, under another Triton",
        classes=("K01",),
        imitates="vllm#43153 (Triton 3.4 to 3.6), pytorch#152823: found releases later",
        suite="cross",
        apply=(HALF_THE_WARPS, another_triton),
        shown={"X": Expect("CHANGED", "sm_90.resident_warps", cases=("rows[widest]/forward",), also=("*",))},
    ),
    Mutant(
        name="one width bucket with an eighth of the tile",
        classes=("K02",),
        imitates="FI#3935 (0 % at 4 K, -11 % at 131 K), FI#4607 (10x at T = 512 only)",
        suite="cross",
        apply=(Edit(FP8, "        rows = 1024 // block\n", "        rows = max(1, 128 // block)\n"),),
        shown={
            "G": Expect("SLOWER", "device_time_us", cases=("rows[256]/forward",), says=("because: ",), also=("*",)),
            "X": Expect("CHANGED", "sm_90.store_bits", cases=("rows[256]/forward",), also=("*",)),
        },
    ),
    changed(
        "K07", "a row of the table is gone",
        "vllm#52192 (-2.35 %), sglang#37072: a width that had been tuned takes the default",
        "cross", "X",
        (Edit(FP8, "    if block <= 512:\n        rows", "    if block < 0:\n        rows"),),
        "sm_90.store_bits", "because: ", "`quantize_rows`: entry 512 or narrower -> default",
        cases=("rows[256]/forward",), also=("*",),
    ),
    Mutant(
        name="a tile too large for the registers",
        classes=("K06",),
        imitates="FA#2729 (25 %), cutlass#3389 (+31 %): the same bits, out of spilled registers",
        suite="cross",
        apply=(
            Edit(
                OPERATORS,
                "        return (TileConfig(32, 64, 4), TileConfig(64, 32, 4))\n    sizes = (4096, 1024) if",
                "        return (TileConfig(128, 128, 4), TileConfig(64, 32, 4))\n    sizes = (4096, 1024) if",
            ),
        ),
        shown={
            "G": Expect("SLOWER", "device_time_us", cases=("gate[transposed]/forward",), says=("spills",), also=("*",)),
            "X": Expect("CHANGED", "*.spills", cases=("gate[transposed]/forward",), also=("*",)),
        },
    ),
    Mutant(
        name="divisibility is lost",
        classes=("K13",),
        imitates="helion#2426 (50 %), triton#9834 (6x on MI300X), torchao#2911: an argument no longer specialised",
        suite="cross",
        apply=(
            Edit(
                "kernels/operators/silu_mul.py",
                '@jit(do_not_specialize=["rows"])\ndef _forward(',
                '@jit(do_not_specialize=["rows", "width", "g_row", "u_row"])\ndef _forward(',
            ),
        ),
        shown={
            "G": Expect(
                "SLOWER",
                "device_time_us",
                cases=("gate[*]/forward",),
                says=("_bits",),
                also=("*",),
            ),
            "X": Expect("CHANGED", "*.store_bits", cases=("gate[*]/forward",), also=("*",)),
        },
    ),
    Mutant(
        name="columns in memory with the configuration of rows",
        classes=("K47",),
        imitates="torchao#3972 (layout and tile each alone 0 or -7 %, both 4.7x), torchao#4069",
        suite="cross",
        apply=(
            Edit(
                OPERATORS,
                '    if layout == "strided":\n        # Neighbouring rows may be the neighbours in memory: as many',
                "    if False:\n        # Neighbouring rows may be the neighbours in memory: as many",
            ),
        ),
        shown={
            "G": Expect(
                "SLOWER",
                "device_time_us",
                cases=("gate[transposed]/forward",),
                says=("because: ", "R=32 C=64", "R=2 C=1024"),
                also=("*.sector_bytes",),
            ),
            "X": Expect(
                "CHANGED",
                "*.sector_bytes",
                cases=("gate[transposed]/forward",),
                says=("sm_90.sector_bytes: _forward 32 B -> 5.6 B",),
                also=("*",),
            ),
        },
    ),
    Mutant(
        name="the token count is part of the tuning key",
        classes=("K41",),
        imitates="torchao#4069 (33 shapes a step, 100 device syncs), sonic-moe#60 (45-50 s each)",
        suite="tuned",
        apply=(Edit("test_tuned.py", 'key=["width"]', 'key=["width", "rows"]'),),
        shown={
            "G": Expect("CHANGED", "*.tunings", also=("*",)),
            "X": Expect("CHANGED", "*.tunings", says=("tunings: _forward 1 -> 8",), also=("*",)),
        },
    ),
    Mutant(
        name="twelve configurations are timed at the first call",
        classes=("K14",),
        imitates="transformers-qwen3-moe-fused#21 (488-568 s inside step 1), torchao#3952 (+2.5 s)",
        suite="tuned",
        apply=(
            Edit(
                "test_tuned.py",
                "num_warps=size // 512) for size in (1024, 2048)]",
                "num_warps=w, num_stages=s) for size in (1024, 2048) for w in (2, 4) for s in (1, 2, 3)]",
            ),
        ),
        shown={
            "G": Expect("CHANGED", "compiled_kernels", also=("*",)),
            "X": Expect("CHANGED", "*.compilations", says=("_forward 2 -> 12",)),
        },
    ),
]  # fmt: skip
