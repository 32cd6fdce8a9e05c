"""What the interpreter is entered for, what it says it cannot do, and that Triton is as it was afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.autotuner import Autotuner

from perfguard._compat import triton_interpreter as names
from perfguard._compat.private import Private
from perfguard.check.hard_inputs.fakes import judge_fakes
from perfguard.check.hard_inputs.search import wrong_of
from perfguard.interpreter.entry import interpreter_error, interpreting
from perfguard.interpreter.running import counted
from perfguard.judge.exact import judge_exact
from perfguard.measure.metrics.launches import kernel_work
from perfguard.model.call import Call
from perfguard.model.records import Reading, Word
from perfguard.pytest_plugin.without_gpu import VARIABLE, WithoutGpu, has_gpu
from tests.interpreter import INTERPRETED, PYTEST, jit


@jit
def halves_of(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0.0)
    if tl.program_id(0) < tl.cdiv(n, B):  # a device function
        tl.store(o + at, v * 0.5, mask=at < n)


@jit
def tensors(x, o, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(o + m[:, None] * M + m[None, :], tl.dot(a, tl.trans(a)))
    tl.atomic_add(o + m, m.to(tl.float32), mask=m < 3)


@jit
def farther(a, b):  # type: ignore[no-untyped-def]
    return a if tl.abs(a) >= tl.abs(b) else b


@jit
def farthest(x, reduced, scanned, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(reduced + tl.arange(0, N), tl.reduce(tl.load(x + at), 0, farther))
    tl.store(scanned + at, tl.associative_scan(tl.load(x + at), 1, farther))


curve = libdevice.tanh


@jit
def of_a_library(x, o, OP: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    v = tl.load(x + at)
    if OP == "tanh":
        v = libdevice.tanh(v)
    elif OP == "curve":
        v = curve(v)
    elif OP == "softmax":
        v = libdevice.exp(v - tl.max(v, axis=0))
    elif OP == "bessel":
        v = libdevice.j0(v)
    else:
        v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(o + at, v)


def test_a_combining_function_may_branch() -> None:
    """It sees two elements on a GPU, as flashnn's quantiser relies on; the truth of a block decides nothing."""
    x = torch.randn(8, 4)
    reduced, scanned = torch.empty(4), torch.empty(8, 4)
    with interpreting():
        farthest[(1,)](x, reduced, scanned, M=8, N=4)
    assert torch.equal(reduced, x.gather(0, x.abs().argmax(0, keepdim=True))[0])
    assert torch.equal(
        scanned, torch.stack([x[:, :n].gather(1, x[:, :n].abs().argmax(1, keepdim=True))[:, 0] for n in range(1, 5)], 1)
    )


def _halved_as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty_like(x, dtype=dtype)
    torch.library.wrap_triton(halves_of)[triton.cdiv(x.numel(), 16),](x, out, x.numel(), B=16)
    return out


def halved(x: torch.Tensor, **options: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    halves_of[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, out, x.numel(), **(options or {"B": 16}))
    return out


def state() -> dict[object, object]:
    """What stands behind each name that is replaced, and behind those of the language."""
    replaced = {value: value.get() for value in vars(names).values() if isinstance(value, Private) and value.exists()}
    language = {(module, name): each for module in (tl, tl.core, tl.math) for name, each in vars(module).items()}
    return {**replaced, "kind": type(names.SHARED.get()), **language}


def test_triton_is_as_it_was_afterwards() -> None:
    throughout = type(names.SHARED.get()) is not names.BUILDER.get()  # beside tests of kernels
    before = state()
    with interpreting():
        with interpreting():
            halved(torch.randn(40))
        inside = state()
        with pytest.raises(Exception, match=r"libdevice\.j0"):
            of_a_library[(1,)](torch.randn(16), torch.empty(16), OP="bessel", N=16)
    after = state()
    assert bool([key for key in before if before[key] is not inside[key]]) is not throughout
    assert [key for key in before if before[key] is not after[key]] == []


def test_a_name_that_a_test_gives_to_another_function_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = torch.randn(16), torch.empty(16)
    with interpreting():
        of_a_library[(1,)](x, out, OP="curve", N=16)
        torch.testing.assert_close(out, x.tanh())
        monkeypatch.setitem(globals(), "curve", libdevice.exp)
        of_a_library[(1,)](x, out, OP="curve", N=16)
    torch.testing.assert_close(out, x.exp())
    assert curve is libdevice.exp


@pytest.mark.parametrize("grid", [[2], lambda meta: [2], torch.Size([2])])
def test_a_grid_is_what_a_device_takes(grid: Any) -> None:
    x, out = torch.randn(32), torch.empty(32)
    with interpreting():
        halves_of[grid](x, out, 32, B=16)
    assert torch.equal(out, x / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_operator_that_is_its_own_fake_is_not_accused(dtype: torch.dtype) -> None:
    """torchao's operators are made by `triton_op`: their fake implementation launches the kernel, which compilers trace
    and no interpreter can run without data. Those of other operators are compared as ever."""

    def halve(x):  # type: ignore[no-untyped-def]
        return _halved_as(x, torch.float32)

    halve.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    name = f"of_tests::halved_{str(dtype)[6:]}"
    own = torch.library.triton_op(name, mutates_args=())(halve)
    plain = torch.library.custom_op(f"{name}_plain", mutates_args=())(halve)
    plain.register_fake(lambda x: torch.empty_like(x, dtype=dtype))
    x = torch.randn(32)
    for operator, wrong in ((own, False), (plain, dtype is not torch.float32)):
        call = Call(lambda x, operator=operator: operator(x), (x,), reference=lambda x: x / 2)
        with interpreting():
            problem = judge_fakes(call).problem
        assert bool(problem) is wrong, problem


def test_functions_of_libraries_are_computed_after_a_launch_that_loaded_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As cut_cross_entropy does, whose next launch had log1p of Triton's interpreter, which returns None."""
    x, out = torch.randn(16), torch.empty(16)

    def loading(_: object) -> tuple[int]:
        monkeypatch.setitem(sys.modules, "loaded_by_a_launch", ModuleType("loaded_by_a_launch"))
        return (1,)

    with interpreting():
        for _ in range(2):
            of_a_library[loading](x, out, OP="softmax", N=16)
            torch.testing.assert_close(out, (x - x.max()).exp())


def test_work_is_counted_by_kernel() -> None:
    with interpreting(), counted() as work, counted() as again:
        halved(torch.randn(40))
        tensors[(1,)](torch.randn(16, 32), torch.zeros(16, 16), M=16, N=32)
    expected = {
        ("halves_of", "programs"): 3,
        ("halves_of", "loads"): 40,  # not the 8 lanes that the mask leaves out
        ("halves_of", "stores"): 40,
        ("tensors", "programs"): 1,
        ("tensors", "loads"): 16 * 32,
        ("tensors", "stores"): 16 * 16,
        ("tensors", "products"): 16 * 32 * 16,
        ("tensors", "atomics"): 3,
    }
    assert work == again == expected
    with interpreting():
        halved(torch.randn(40))
    assert work == expected


def test_a_tuner_takes_its_first_configuration_and_the_others_are_checked_beside_it() -> None:
    configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
    tuner = Autotuner(halves_of, halves_of.arg_names, configs, [], None, None)
    ran: list[int] = []

    def tuned(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        tuner[lambda meta: (ran.append(meta["B"]) or triton.cdiv(x.numel(), meta["B"]),)](x, out, x.numel())  # type: ignore[func-returns-value]
        return out

    x = torch.randn(40)
    with interpreting():
        assert torch.equal(tuned(x), x / 2)
        assert set(ran) == {16}
        assert tuner.cache == {}  # nothing was tuned
        assert wrong_of(Call(tuned, (x,), lambda x: x / 2, hard=None), 5.0) == []
    assert set(ran) == {16, 32}


def test_what_no_interpreter_can_do_is_named() -> None:
    x, out = torch.randn(16), torch.empty(16)
    with interpreting():
        of_a_library[(1,)](x, out, OP="tanh", N=16)
        assert torch.allclose(out, x.tanh())
        for op, said in (("bessel", "libdevice.j0"), ("asm", "inline assembly")):
            with pytest.raises(Exception) as raised:  # Triton wraps it in errors of several kinds
                of_a_library[(1,)](x, out, OP=op, N=16)
            found = interpreter_error(raised.value)
            assert found is not None
            assert str(found) == f"{said} needs a GPU: Triton's interpreter cannot run it"
    assert interpreter_error(ValueError("of the user")) is None


PROJECT = {
    "double.py": """
import torch, triton, triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def kernel(x, o, n, OP: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0.0)
    if OP == "j0":
        v = libdevice.j0(v)
    tl.store(o + at, v + v, mask=at < n)

def double(x, op=""):
    out = torch.empty_like(x)
    kernel[(1,)](x, out, x.numel(), OP=op, B=64)
    return out
""",
    "test_double.py": """
import os
from double import double
import torch

def test_double(perfguard):
    perfguard(double, torch.randn(50, device=perfguard.device), reference=lambda x: x + x, hard=False)
    assert os.environ["TRITON_INTERPRET"] == "1"

def test_bessel(perfguard):
    x = torch.randn(50, device=perfguard.device)
    perfguard(lambda x: double(x, "j0"), x, reference=lambda x: 2 * torch.special.bessel_j0(x), hard=False)
""",
}


@pytest.mark.skipif(has_gpu(), reason="kernels are interpreted where there is no GPU")
def test_the_first_run_of_a_newcomer_without_a_gpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for name, source in PROJECT.items():
        Path(pytester.path, name).write_text(source)
    arguments = ("--perfguard", "--perfguard-lane=cpu", "-n", "1", "-k", "double")
    assert pytester.run(*PYTEST, *arguments).outlines.count(INTERPRETED) == 1  # workers of pytest-xdist print nothing
    monkeypatch.setenv(VARIABLE, "1")  # as measuring runs do by themselves
    result = pytester.run(*PYTEST, "-rs")
    result.stdout.fnmatch_lines(["SKIPPED*libdevice.j0 needs a GPU: Triton's interpreter cannot run it"])
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.no_fnmatch_line(INTERPRETED)


def test_a_user_who_asks_for_something_else_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")

    class Asked:
        class known_args_namespace:  # as pytest calls it
            perfguard_device = None

        rootpath = Path(__file__).parent

    before = [*sys.meta_path]
    made = WithoutGpu(Asked())  # type: ignore[arg-type]
    assert sys.meta_path == before
    assert made.pytest_report_collectionfinish() == []


def test_work_is_summed_over_kernels_so_that_a_renamed_one_is_quiet() -> None:
    def of(*kernels: str) -> list[Reading]:
        counted_work = {(name, what): 10 for name in kernels for what in ("loads", "stores", "programs")}
        return kernel_work(counted_work)

    work, programs = of("one", "other")
    assert work.value == {"loads": 20, "stores": 20}
    assert programs.value == {"one": 10, "other": 10}
    assert judge_exact(of("new", "other")[0], work.value).word is Word.PASS
    worse = judge_exact(of("one", "other", "third")[0], work.value)
    assert worse.word is Word.CHANGED
    assert "loads 20 -> " in worse.reason
    assert of() == []
