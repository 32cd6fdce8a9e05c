"""Operations x dtypes in the interpreter, beside PyTorch on the CPU.

`python -m tests.interpreter.table` writes the table of docs/interpreter.md, with plain Triton beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import triton
import triton.language as tl

from perfguard.interpreter.entry import interpreter_error, interpreting
from tests.interpreter import jit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "interpreter.md"
BEGIN, END = "<!-- table: python -m tests.interpreter.table -->", "<!-- end of the table -->"

N = 64
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATS, *FP8, *INTEGERS, torch.bool]


@jit
def elementwise(x, y, o, s, OP: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: C901
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if OP == "+":
        r = a + b
    elif OP == "-":
        r = a - b
    elif OP == "*":
        r = a * b
    elif OP == "/":
        r = a / b
    elif OP == "// and %":
        r = a // b + a % b
    elif OP == "<, ==":
        r = (a < b) | (a == b)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "where":
        r = tl.where(b > a, a, b)
    elif OP == "abs":
        r = tl.abs(a)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "* float argument":
        r = a * s
    elif OP == "mask and mask":
        r = tl.where((a > b) and (a > tl.load(x + N - 1 - at)), a, b)
    tl.store(o + at, r)


@jit
def cast(x, o, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(o + at, tl.load(x + at).to(o.dtype.element_ty))


@jit
def over_a_block(x, o, OP: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    a = tl.load(x + at)
    if OP == "sum":
        tl.store(o, tl.sum(a, 0))
    elif OP == "max":
        tl.store(o, tl.max(a, 0))
    elif OP == "argmax":
        tl.store(o, tl.argmax(a, 0))
    elif OP == "own reduction":
        tl.store(o, tl.reduce(a, 0, larger))
    elif OP == "cumsum":
        tl.store(o + at, tl.cumsum(a, 0))
    elif OP == "own scan":
        tl.store(o + at, tl.associative_scan(a, 0, larger))
    elif OP == "sort":
        tl.store(o + at, tl.sort(a))


@jit
def larger(a, b):  # type: ignore[no-untyped-def]
    return tl.where(a > b, a, b)


@jit
def product(x, y, o, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(o + at, tl.dot(tl.load(x + at), tl.load(y + at), out_dtype=o.dtype.element_ty))


@jit
def atomics(x, o, OP: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    a = tl.load(x + at)
    if OP == "atomic add":
        tl.atomic_add(o + at % 8, a)
    else:
        tl.atomic_max(o + at % 8, a)


@jit
def masked(x, o, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(o + at, tl.load(x + at, mask=at < N - 9, other=1.0), mask=at >= 5)


def values(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Of both signs and several magnitudes, none 0, with ties of the roundings among the sums."""
    made = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (N,), generator=made).bool()
    if not dtype.is_floating_point:
        low, high = (1, 100) if dtype is torch.uint8 else (-11, 11)
        numbers = torch.randint(low, high, (N,), generator=made).to(dtype)
        return torch.where(numbers == 0, 3, numbers)
    return (torch.randn(N, generator=made) * torch.tensor([0.25, 1, 3, 9]).repeat(N // 4)).to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _elementwise(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = values(dtype, 0), values(dtype, 1)
    a, b = wide(x), wide(y)
    wanted: dict[str, Callable[[], torch.Tensor]] = {
        "+": lambda: a + b if dtype is not torch.bool else a ^ b,
        "-": lambda: a - b if dtype is not torch.bool else a ^ b,
        "*": lambda: a * b,
        "/": lambda: x.float() / y.float(),
        "// and %": lambda: torch.div(a, b, rounding_mode="trunc") + torch.fmod(a, b),
        "<, ==": lambda: a <= b,
        "maximum": lambda: torch.maximum(a, b),
        "where": lambda: torch.where(b > a, a, b),
        "abs": lambda: a.abs() if dtype is not torch.bool else a,
        "fma": lambda: a * b + a,
        "* float argument": lambda: a.float() * torch.tensor(0.3),
        "mask and mask": lambda: torch.where((a > b) & (a > a.flip(0)), a, b),
    }
    kind = torch.bool if op == "<, ==" else torch.float32 if op in ("/", "* float argument") else dtype
    # Before Triton 3.9, its language has no wider quotient of two floats of 8 bits.
    kind = dtype if op == "/" and dtype.is_floating_point else kind
    out = torch.zeros(N, dtype=kind)
    elementwise[(1,)](x, y, out, 0.3, OP=op, N=N)
    return out, wanted[op]().to(kind)


def _over_a_block(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = values(dtype, 2)
    a = wide(x)
    sums = op in ("sum", "cumsum") and not dtype.is_floating_point
    kind = torch.int64 if op == "argmax" or sums else dtype
    out = torch.zeros(N if op in ("cumsum", "own scan", "sort") else 1, dtype=kind)
    over_a_block[(1,)](x, out, OP=op, N=N)
    wanted = {
        "sum": lambda: a.sum(0, keepdim=True),
        "max": lambda: a.amax(0, keepdim=True),
        "argmax": lambda: a.to(torch.float64).argmax(0, keepdim=True),
        "own reduction": lambda: a.amax(0, keepdim=True),
        "cumsum": lambda: a.cumsum(0),
        "own scan": lambda: a.to(torch.float64).cummax(0).values,
        "sort": lambda: a.to(torch.float64).sort().values,
    }
    return out, wanted[op]().to(kind)


def _dot(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = values(dtype, 3).repeat(4)[:256].view(16, 16), values(dtype, 4).repeat(4)[:256].view(16, 16)
    out = torch.zeros(16, 16, dtype=torch.float32 if dtype.is_floating_point else torch.int32)
    product[(1,)](x.contiguous(), y.contiguous(), out, N=16)
    return out, (x.double() @ y.double()).to(out.dtype)


def _atomic(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = values(dtype, 5)
    out = torch.ones(8, dtype=dtype)
    atomics[(1,)](x, out, OP=op, N=N)
    wanted = torch.ones(8, dtype=dtype)
    for each in x.view(8, 8):
        sum_or_larger = wanted + each if op == "atomic add" else torch.maximum(wanted, each)
        wanted = sum_or_larger
    return out, wanted


def _masked(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x, out = values(dtype, 6), torch.zeros(N).to(dtype)
    masked[(1,)](x, out, N=N)
    at = torch.arange(N)
    return out.float(), torch.where(at < 5, 0, torch.where(at < N - 9, x.float(), 1))


def _cast(op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """From and to float32: the values, what lies between two neighbours, and beyond the largest."""
    x = wide(values(dtype, 7)).float()
    if op == "to float32":
        x, out = values(dtype, 7), torch.zeros(N)
        cast[(1,)](x, out, N=N)
        return out, x.float()
    if dtype.is_floating_point:
        up = torch.arange(N, dtype=torch.float32) / 64 + 1  # ties of formats of up to 5 bits
        x = torch.where(torch.arange(N) % 2 == 0, up * 4, x * 1.01)
    out = torch.zeros(N).to(dtype)
    cast[(1,)](x, out, N=N)
    return out.float(), x.to(dtype).float()


OPERATIONS: dict[str, Callable[[str, torch.dtype], tuple[torch.Tensor, torch.Tensor]]] = {
    **dict.fromkeys(("+", "-", "*", "/", "// and %", "<, ==", "maximum", "where", "abs", "fma"), _elementwise),
    **dict.fromkeys(("* float argument", "mask and mask"), _elementwise),
    **dict.fromkeys(("from float32", "to float32"), _cast),
    "dot": _dot,
    **dict.fromkeys(("sum", "max", "argmax", "own reduction", "cumsum", "own scan", "sort"), _over_a_block),
    **dict.fromkeys(("atomic add", "atomic max"), _atomic),
    "masked load and store": _masked,
}


def cell(op: str, dtype: torch.dtype) -> str:
    """`right`, `wrong`; `–` where Triton's language does not have it; `raises`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, want = OPERATIONS[op](op, dtype)
    except Exception as error:
        if interpreter_error(error) is not None:
            return "unsupported"
        return "–" if _is_refused(error) else "raises"
    if op in ("dot", "sum", "cumsum") and got.dtype.is_floating_point:  # other orders of sums
        step = max(torch.finfo(want.dtype).eps, 1e-5)
        return "right" if torch.allclose(got.float(), want.float(), rtol=step, atol=1e-4) else "wrong"
    got, want = wide(got), wide(want)
    same = (got == want) | ((got != got) & (want != want))
    return "right" if bool(same.all()) else "wrong"


def _is_refused(error: BaseException) -> bool:
    """Whether Triton's front end, which a GPU has as well, or PyTorch has no such operation."""
    frames, at = [], error.__traceback__
    while at is not None:
        frames.append(at.tb_frame.f_code.co_filename)
        at = at.tb_next
    cause = error.__cause__
    if cause is not None:
        return _is_refused(cause)
    inside = frames[-1]
    return "/triton/language/" in inside or inside.endswith(("table.py", "/triton/_utils.py"))


def written() -> str:
    """The table in Markdown: ours, and after a slash plain Triton where that differs."""
    names = [str(each).removeprefix("torch.").removeprefix("float8_") for each in DTYPES]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for op in OPERATIONS:
        cells = []
        for dtype in DTYPES:
            found = []
            for around in (interpreting(), nullcontext()):
                with around:
                    found.append(cell(op, dtype))
            cells.append(found[0] if found[0] == found[1] else f"{found[0]} / **{found[1]}**")
        lines.append(f"| `{op}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    said = f"Triton {triton.__version__}, PyTorch {torch.__version__.partition('+')[0]}:"
    PAGE.write_text(f"{before}{BEGIN}\n\n{said}\n\n{written()}\n\n{END}{after}", encoding="utf-8")
