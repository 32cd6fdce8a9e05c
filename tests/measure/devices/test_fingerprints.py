"""Machine code without its line numbers, launches without a doubt: what makes two runs the same run."""

from __future__ import annotations

import gc
import json
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.binaries.kernel_facts import machine_code
from perfguard.measure.devices import gpu_activity
from perfguard.measure.devices.gpu_activity import TritonLaunch, fingerprint
from perfguard.measure.devices.kineto import Work
from tests.nursery import Nursery

ROOT = Path(__file__).parents[3]
ALLOCATED = 2


def elf(**sections: tuple[int, bytes]) -> bytes:
    """A 64-bit ELF file of these sections: name (`_` for `.`) -> flags and content."""
    names, body, headers = b"\0", b"", [bytes(64)]
    for name, (flags, content) in {**sections, "_shstrtab": (0, b"")}.items():
        at = len(names)
        names += name.replace("_", ".").encode() + b"\0"
        if name == "_shstrtab":
            content = names
        headers.append(struct.pack("<IIQQQQ24x", at, 1, flags, 0, 64 + len(body), len(content)))
        body += content
    head = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(body))
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    return head + body + b"".join(headers)


contents = st.binary(min_size=1, max_size=64)


@given(contents, contents, contents, contents)
def test_only_what_is_loaded_counts(text: bytes, info: bytes, debug: bytes, other: bytes) -> None:
    def code(text: bytes, info: bytes, debug: bytes) -> str | None:
        return machine_code(elf(_text=(ALLOCATED, text), _nv_info_k=(0, info), _debug_line=(0, debug)))

    base = code(text, info, debug)
    assert base is not None
    assert code(text, info, other) == base
    assert (code(other, info, debug) == base) == (other == text)
    assert (code(text, other, debug) == base) == (other == info)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_what_is_no_elf_file_has_no_code(content: bytes, length: int) -> None:
    assert machine_code(content) is None
    cut = elf(_text=(ALLOCATED, b"code"))[:length]
    assert machine_code(cut) is None or len(cut) > 64


CROSS_COMPILE = """
import json, runpy, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from perfguard.measure.binaries.kernel_facts import machine_code

def build(path, target, block=256, warps=4):
    signature = dict(x="*fp32", n="i32", BLOCK="constexpr")
    source = ASTSource(runpy.run_path(path)["double"], signature, {(2,): block}, {(0,): [["tt.divisibility", 16]]})
    return compile(source, target=target, options=dict(num_warps=warps)).kernel

here, moved = sys.argv[1:]
answer = []
for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    built = [build(here, target), build(moved, target), build(here, target, block=512), build(here, target, warps=8)]
    answer.append(([machine_code(binary) for binary in built], built[0] == built[1]))
print(json.dumps(answer))
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
"""


def test_a_kernel_that_moved_has_the_same_code_and_one_of_other_constants_has_not(
    tmp_path: Path, nursery: Nursery
) -> None:
    """Compiled for both vendors with line numbers on, as users compile."""
    pytest.importorskip("triton")
    here, moved = tmp_path / "here.py", tmp_path / "moved.py"
    here.write_text(KERNEL)
    moved.write_text(KERNEL.replace("    at =", "    # a comment\n\n    at ="))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    line = [nursery.python, "-c", CROSS_COMPILE, str(here), str(moved)]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    for (base, elsewhere, block, warps), identical in json.loads(done.stdout):
        assert not identical  # the files do differ, by lines and paths
        assert base == elsewhere
        assert len({base, block, warps}) == 3


FACTS = {"grid": [8, 1, 1], "block": [128, 1, 1], "shared memory": 0, "registers per thread": 40}
ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, 1>(int, float*)"


def kernel(name: str = "_rows", **facts: Any) -> Work:
    return Work("kernel", name, 0, FACTS | {name.replace("_", " "): value for name, value in facts.items()})


class CompiledKernel:
    """As Triton's own looks from outside."""

    __module__ = "triton.compiler.compiler"

    def __init__(self, name: str, handle: int, code: bytes, registers: int = 40) -> None:
        self.name, self.function, self.n_regs = name, handle, registers
        self.kernel = elf(_text=(ALLOCATED, code))
        self.metadata = SimpleNamespace(num_warps=4, target=SimpleNamespace(warp_size=32))


class StaticallyLaunchedCudaKernel:
    """As inductor's looks from outside: without the binary."""

    __module__ = "torch._inductor.runtime.static_triton_launcher"

    def __init__(self, name: str) -> None:
        self.name, self.function, self.n_regs, self.num_warps, self.hash = name, 7, 40, 4, "0" * 64


@pytest.fixture(autouse=True)
def frozen() -> Iterator[int]:
    """The number of frozen objects: all there are, so that no kernel of another test is seen and searches are short."""
    before = gc.get_freeze_count()
    gc.freeze()
    yield gc.get_freeze_count()
    if not before:
        gc.unfreeze()


@pytest.mark.parametrize(
    "work",
    [
        [kernel(), kernel()],
        [kernel(grid=[9, 1, 1])],
        [kernel(block=[256, 1, 1])],
        [kernel(shared_memory=1024)],
        [kernel(), Work("fill", "Memset (Device)", 0, {"bytes": 4})],
        [Work("kernel", "_rows", 1, FACTS)],
        [kernel(), kernel(ATEN)],
    ],
    ids=["twice", "grid", "block", "shared", "fill", "stream", "library"],
)
def test_every_part_of_a_launch_counts(work: list[Work], own_libraries: None) -> None:
    alive = CompiledKernel("_rows", 1, b"code")
    base = fingerprint([kernel()], [TritonLaunch("_rows", alive.function)])
    rows = sum(each.name == "_rows" for each in work)
    other = fingerprint(work, [TritonLaunch("_rows", 1)] * rows)
    assert other is not None
    assert other != base


@pytest.fixture
def own_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_activity, "foreign_libraries", lambda maps: "")


def test_kernels_of_one_name_are_told_apart_by_the_code_behind_their_handles() -> None:
    small, large = CompiledKernel("_rows", 1, b"small"), CompiledKernel("_rows", 2, b"large")
    work = [kernel(), kernel()]
    told = {
        handles: fingerprint(work, [TritonLaunch("_rows", handle) for handle in handles])
        for handles in ((small.function, large.function), (large.function, small.function), (1, 1), (2, 2))
    }
    assert len(set(told.values())) == 4
    assert None not in told.values()
    first = told[1, 1]
    del small
    again = CompiledKernel("_rows", 3, b"small")
    assert fingerprint(work, [TritonLaunch("_rows", again.function)] * 2) == first


def test_without_handles_registers_and_threads_must_tell() -> None:
    lean, fat = CompiledKernel("_rows", 1, b"lean", registers=40), CompiledKernel("_rows", 2, b"fat", registers=255)
    by_registers = fingerprint([kernel()], [])
    assert by_registers == fingerprint([kernel()], [TritonLaunch("_rows", lean.function)])
    assert fingerprint([kernel(registers_per_thread=255)], []) is not None
    fat.n_regs = 40
    assert fingerprint([kernel()], []) is None  # either of two
    lean.kernel = fat.kernel
    assert fingerprint([kernel()], []) is not None  # of the same code


@pytest.mark.parametrize("user_froze", [False, True])
def test_the_collector_is_left_as_it_was(user_froze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gpu_activity, "_compiled", list)
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: int(user_froze))
    gpu_activity.forget_objects_without_kernels()
    gpu_activity.remember_objects()
    gpu_activity.remember_objects()
    assert calls == ["freeze"] + ["unfreeze"] * (not user_froze)


def test_kernels_that_come_after_the_imports_are_found_without_looking_at_those(frozen: int) -> None:
    imported: list[list[int]] = [[] for _ in range(20_000)]
    gpu_activity.forget_objects_without_kernels()
    assert gc.get_freeze_count() > frozen + 10_000
    assert len(gc.get_objects()) < 10_000
    kernel_made = CompiledKernel("_rows", 1, b"code")
    assert fingerprint([kernel()], [TritonLaunch("_rows", kernel_made.function)]) is not None
    del imported
    hidden = gc.get_freeze_count()
    gpu_activity.forget_objects_without_kernels()  # does nothing, since there is a kernel
    assert gc.get_freeze_count() <= hidden


@pytest.mark.parametrize(
    "work",
    [
        [],
        [kernel("void my_extension::kernel<float>(float*)")],
        [kernel("my_gemm_kernel")],
        [kernel(), kernel("unknown")],
        [Work("kernel", "_rows", 0, {})],
        [kernel("triton_poi_fused_add_0")],
    ],
    ids=["nothing", "C++", "like a library's", "beside a known one", "no grid", "inductor's, binary gone"],
)
def test_unknown_origin_leaves_no_fingerprint(work: list[Work]) -> None:
    alive = CompiledKernel("_rows", 1, b"code")
    static = StaticallyLaunchedCudaKernel("triton_poi_fused_add_0")
    assert fingerprint(work, [TritonLaunch("_rows", 1)] * sum(each.name == "_rows" for each in work)) is None
    del alive, static


@pytest.mark.parametrize(
    "name",
    [
        ATEN,
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
        "void gemv2T_kernel_val<int, int, float, float>(cublasGemvParamsEx<int, float, float>)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
        "Cijk_Ailk_Bljk_BBS_BH_MT64x64x32_MI16x16x16x1",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(int)",
    ],
)
def test_library_kernels_count_by_name(name: str, own_libraries: None) -> None:
    once = fingerprint([kernel(name)], [])
    assert once is not None
    assert once == fingerprint([kernel(name)], [])
    assert once != fingerprint([kernel(f"{name} [clone]")], [])


def test_an_extension_with_device_code_counts_by_its_content(tmp_path: Path) -> None:
    plain, extension = tmp_path / "plain.so", tmp_path / "extension.so"
    plain.write_bytes(elf(_text=(ALLOCATED, b"host code")))
    extension.write_bytes(elf(_nv_fatbin=(ALLOCATED, b"device code")).replace(b".nv.fatbin", b".nv_fatbin"))
    other = tmp_path / "other.so"
    other.write_bytes(extension.read_bytes().replace(b"device code", b"DEVICE CODE"))

    def maps(*paths: Path) -> str | None:
        lines = [f"7f0000000000-7f0000001000 r-xp 00000000 00:1f 12 {'':20}{path}" for path in paths]
        lines.append("7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]")
        (tmp_path / "maps").write_text("\n".join([*lines, ""]))
        return gpu_activity.foreign_libraries(tmp_path / "maps")

    assert maps(plain) == maps(plain, tmp_path / "gone.so") == ""
    assert maps(plain, extension) == maps(extension) != ""
    assert maps(other) not in ("", maps(extension))
    assert gpu_activity.foreign_libraries(tmp_path / "nothing here") is None
    assert gpu_activity.foreign_libraries(Path("/proc/self/maps")) == ""  # torch itself is of the toolchain


def test_launches_by_triton_are_listed_while_listening() -> None:
    knobs = pytest.importorskip("triton.knobs")
    compiler = pytest.importorskip("triton.compiler.compiler")
    before = list(knobs.runtime.launch_enter_hook.calls)
    kernel = SimpleNamespace(name="_rows", function=5, src=None, _init_handles=lambda: None)
    with gpu_activity.triton_launches() as launched:
        compiler.CompiledKernel.launch_metadata(kernel, (1, 1, 1), 0)
    compiler.CompiledKernel.launch_metadata(kernel, (1, 1, 1), 0)
    assert launched == [TritonLaunch("_rows", 5, "[]")]
    # A hook that stays would keep inductor from its own launcher, and slow every launch.
    assert list(knobs.runtime.launch_enter_hook.calls) == before


def test_the_scalars_of_a_launch_count() -> None:
    """A binary runs as long as its arguments say: `for _ in range(steps)` has one binary for every `steps`."""
    compiler = pytest.importorskip("triton.compiler.compiler")
    kept = compiler.CompiledKernel.launch_metadata

    def launches(*args: object) -> list[TritonLaunch]:
        kernel = SimpleNamespace(name="_rows", function=5, src=None, _init_handles=lambda: None)
        with gpu_activity.triton_launches() as launched:
            compiler.CompiledKernel.launch_metadata(kernel, (1, 1, 1), 0, *args)
        return launched

    alive = CompiledKernel("_rows", 5, b"code")
    x = torch.ones(4)
    base = fingerprint([kernel()], launches(x, 100, True, 2.5, (3, x), 128))
    assert base == fingerprint([kernel()], launches(torch.ones(4), 100, True, 2.5, (3, x), 128)) is not None
    for other in (
        (101, True, 2.5, (3, x)),
        (100, False, 2.5, (3, x)),
        (100, True, 2.0, (3, x)),
        (100, True, 2.5, (4, x)),
    ):
        assert fingerprint([kernel()], launches(x, *other, 128)) != base
    # An address is another one in every process.
    assert launches(x, 0x7F0000000000) == launches(x, 0x7F1000000000) != launches(x, 7)
    assert compiler.CompiledKernel.launch_metadata is kept
    assert alive.function == 5
