"""What is read of profilers' outputs, and what is said of two sides: of real ones of `ncu`, and of `rocprofv3` in the
form that ROCm documents ("Using rocprofv3", kernel counter collection), since no output of an AMD GPU was to be had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfguard.judge.exact import describe_difference
from perfguard.measure.profilers import Launch, NsightCompute, RocProfiler, moved, profiler_for, refusal
from perfguard.model.records import Hardware

RECORDED = Path(__file__).parent / "ncu-h200.csv"
HEADER = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name",'
    '"Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name",'
    '"Counter_Value","Start_Timestamp","End_Timestamp"'
)


def said(base: list[Launch], work: list[Launch]) -> list[str]:
    """What moved, in the words of a verdict."""
    found = moved(base, work)
    return [describe_difference(now, then.value) for then, now in zip(found.base, found.work, strict=True)]


@pytest.fixture
def launches(tmp_path: Path) -> list[Launch]:
    shutil.copy(RECORDED, tmp_path / "ncu.csv")
    return NsightCompute().launches(tmp_path)


def test_launches_of_ncu(launches: list[Launch]) -> None:
    assert [each.kernel for each in launches[::2]] == ["plant_once", "plant_rows", "plant_dot"]
    assert launches[1].us == 181.504
    assert launches[0].counters["dram_read"] == pytest.approx(2**26 * 4, rel=0.01)  # It reads its input once.
    assert launches[3].counters["local_accesses"] == 2_162_688 + 1_671_168
    assert sum(value for name, value in launches[0].counters.items() if name.startswith("stalls.")) == pytest.approx(
        100
    )


@pytest.mark.parametrize("text", ["", "==PROF== Connected to process 5\n==WARNING== No kernels were profiled.\n"])
def test_no_launch_of_ncu(text: str, tmp_path: Path) -> None:
    (tmp_path / "ncu.csv").write_text(text)
    assert (NsightCompute().launches(tmp_path), refusal(tmp_path)) == ([], "")


def test_counters_of_a_matrix_product_are_of_whichever_pipe_was_busiest(tmp_path: Path) -> None:
    """Their names differ between architectures, and a counter that one lacks is `n/a`."""
    names = [
        "sm__pipe_tensor_op_hmma_cycles_active",
        "sm__inst_executed_pipe_tensor_op_gmma",
        "sm__pipe_fma_cycles_active",
    ]
    columns = ['"ID"', '"Kernel Name"', *(f'"{each}.avg.pct_of_peak_sustained_active"' for each in names)]
    rows = [",".join(columns), '"","","%","%","%"', '"0","dot","n/a","61.5","90"', "==PROF== Disconnected"]
    (tmp_path / "ncu.csv").write_text("\n".join(rows))
    assert NsightCompute().launches(tmp_path) == [Launch("dot", 0.0, {"tensor_pipe": 61.5})]


def test_what_moved_most_comes_first(launches: list[Launch]) -> None:
    once, twice, good, spilling, full, lonely = launches
    assert said([once], [twice])[:2] == ["dram_read 256 MiB -> 512 MiB (+100.0 %)", "l2_hits 51 % -> 35 %"]
    assert said([good], [spilling])[:3] == [
        "local_accesses 0 -> 3833856", "occupancy 91 % -> 47 %", "dram_written 231.6 MiB -> 418.3 MiB (+80.6 %)",
    ]  # fmt: skip
    assert said([full], [lonely])[0] == "occupancy 24 % -> 12 %"
    assert said([once], [once]) == []


def test_of_several_kernels_the_one_that_moved_is_named(launches: list[Launch]) -> None:
    once, twice, good, spilling, *_ = launches
    assert moved([once, good], [once, spilling])[:2] == ("plant_rows", (127.712, 197.536))
    assert moved([once, good], [good, twice])[0] == "all kernels"  # The one that is gone has another name now.
    assert said([good, once, once], [spilling, once, once]) == said([good], [spilling])


def test_what_explains_nothing_is_not_said() -> None:
    """A few bytes more, a share that moved by noise; and what moved against the time comes last."""
    base = Launch("rows", 100.0, {"dram_read": 1e8, "dram_written": 1000.0, "l2_hits": 2.0, "occupancy": 40.0})
    work = Launch("rows", 150.0, {"dram_read": 2e8, "dram_written": 9000.0, "l2_hits": 1.0, "occupancy": 95.0})
    assert said([base], [work]) == ["dram_read 95.37 MiB -> 190.7 MiB (+100.0 %)", "occupancy 40 % -> 95 %"]
    assert said([work], [base]) == ["dram_read 190.7 MiB -> 95.37 MiB (-50.0 %)", "occupancy 95 % -> 40 %"]


def test_more_work_is_said_by_its_instructions() -> None:
    base = Launch("rows", 100.0, {"warp_instructions": 5e6, "dram_read": 1e6})
    work = Launch("rows", 110.0, {"warp_instructions": 5.5e6, "dram_read": 1e6})
    assert said([base], [work]) == ["warp_instructions 5000000 -> 5500000 (+10.0 %)"]


def rocm(folder: Path, counter: str, values: dict[str, list[float]], us: float) -> None:
    """A file of one run of the process, with a row for each launch."""
    rows, dispatch = [HEADER], 0
    for kernel, each in values.items():
        for value in each:
            dispatch += 1
            start = 1_000_000 * dispatch
            rows.append(
                f'{dispatch},{dispatch},"Agent 4",1,17,17,1048576,13,"{kernel}",64,0,0,8,0,16,"{counter}",{value:.6f},'
                f"{start},{start + round(1000 * us)}"
            )
    folder.mkdir(parents=True)
    (folder / "17_counter_collection.csv").write_text("\n".join(rows) + "\n")


def test_launches_of_rocprofv3(tmp_path: Path) -> None:
    """Each group of counters is of a run of its own; a kernel's launches have one order in all of them."""
    rocm(tmp_path / "pass_1" / "host", "FETCH_SIZE", {"rows_kernel(float*, int)": [1024.0, 2048.0]}, us=10.0)
    rocm(tmp_path / "pass_2" / "host", "L2CacheHit", {"rows_kernel(float*, int)": [61.5, 60.5]}, us=12.0)
    first, second = RocProfiler().launches(tmp_path)
    assert first == Launch("rows_kernel(float*, int)", 10.0, {"dram_read": 2**20, "l2_hits": 61.5})
    assert second.counters == {"dram_read": 2**21, "l2_hits": 60.5}
    line = RocProfiler().prefix("/opt/rocm/bin/rocprofv3", tmp_path)
    assert (line[0], line[-1]) == ("/opt/rocm/bin/rocprofv3", "--")
    groups = Path(line[line.index("--input") + 1]).read_text().splitlines()
    assert groups[:2] == ["pmc: FETCH_SIZE", "pmc: WRITE_SIZE"]


def test_each_vendor_has_a_profiler() -> None:
    def name(slug: str) -> str | None:
        profiler = profiler_for(Hardware(slug=slug, vendor="", name="", architecture=""))
        return None if profiler is None else profiler.name

    assert [name(slug) for slug in ("nvidia-h200", "amd-instinct-mi300x", "cpu", "fake-gpu")] == [
        "ncu", "rocprofv3", None, None,
    ]  # fmt: skip
