"""What baselines remember: a line a case, in Markdown and in columns."""

from __future__ import annotations

from perfguard.model.records import Baseline, CaseBaseline, Provenance, TimedEntry
from perfguard.render.remembered import remembered_as_markdown, remembered_as_text

GPU = Provenance(torch="2.11.0", driver="580.1", board="cuda-4ab0cf2d", commit="1a", recorded="2026-11-20")
CPU = Provenance(torch="2.11.0", triton="3.9.0", commit="1a", recorded="2026-11-20")
BASELINES = [
    Baseline(
        "targets/sm_90",
        "moe",
        CPU,
        {
            "gate[64]/backward": CaseBaseline(
                {
                    "sm_90.binary": {"rows": "a", "rows/2": "b", "sums": "c"},
                    "sm_90.registers": {"rows": 48, "rows/2": 96, "sums": 28},
                    "sm_90.resident_warps": {"rows": 64, "rows/2": 20, "sums": 64},
                    "sm_90.spills": {"rows": 0, "rows/2": 8, "sums": 4},
                    "sm_90.unfit": {},
                },
                reasons={"sm_90.spills": "rings | in shared memory", "sm_90.registers": "rings | in shared memory"},
            ),
        },
    ),
    Baseline(
        "nvidia-h200",
        "moe",
        GPU,
        {
            "gate[64]/forward": CaseBaseline(
                {
                    "device_time_us": TimedEntry([61.0, 61.2, 61.6], "graph"),
                    "launches": 2,
                    "peak_memory_bytes": 85196800,
                    "kernels": ["rows", "sums"],
                }
            ),
            "gate[48]/forward": CaseBaseline(
                {
                    "device_time_us": TimedEntry([5.0], "graph"),
                    "launches": 9,
                    "kernels": ["sums", *["rows"] * 4, "a", "b", "c", "d"],
                },
                provenance=Provenance(torch="2.12.0", board="cuda-4ab0cf2d", commit="2b", recorded="2026-11-21"),
            ),
        },
    ),
]


def test_a_terminal_shows_columns() -> None:
    assert (
        remembered_as_text(BASELINES)
        == """\
perfguard remembers 3 cases, 2 times, in 2 suites

nvidia-h200 moe: 2 cases, recorded 2026-11-20 to 2026-11-21 at 2 commits, on board cuda-4ab0cf2d; \
torch 2.11.0 and 2.12.0, driver 580.1
    case              device time      launches  peak memory  kernels                         recorded
    gate[48]/forward  5 µs             9                      rows x4, sums, a, b and 2 more  2026-11-21 at 2b
    gate[64]/forward  61.2 µs ± 0.5 %  2         81.25 MiB    rows, sums                      2026-11-20 at 1a

targets/sm_90 moe: 1 case, recorded 2026-11-20 at 1a; torch 2.11.0, triton 3.9.0
    case               registers  spills  reasons
    gate[64]/backward  96         8       rings | in shared memory"""
    )


def test_markdown_has_a_table_a_file_and_escapes_what_is_not_ours() -> None:
    text = remembered_as_markdown(BASELINES)
    assert text.startswith(
        "### perfguard remembers 3 cases, 2 times, in 2 suites\n\n**<code>nvidia-h200</code> <code>moe"
    )
    assert "| case | registers | spills | reasons |\n| --- | --- | --- | --- |\n" in text
    assert "| 96 | 8 | <code>rings &#124; in shared memory</code> |" in text
    rows = [line for line in text.splitlines() if line.startswith("| <code>gate")]
    assert len(rows) == 3
    assert rows[1].startswith("| <code>gate&#91;64&#93;/forward</code> | 61.2 µs ± 0.5 % | 2 | 81.25 MiB | ")


def test_an_entry_that_no_column_can_show_leaves_a_row() -> None:
    other = {
        "launches": "two",
        "device_time_us": 5,
        "spills": {"rows": "many"},
        "peak_memory_bytes": "all",
        "path": "x",
    }
    odd = Baseline("x", "s", cases={"a/forward": CaseBaseline({**other})})  # type: ignore[arg-type]
    assert remembered_as_text([odd]).endswith("\nx s: 1 case, recorded\n    case\n    a/forward")
