"""Every cell of the table in docs/interpreter.md is what the interpreter computes, and none is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from perfguard.interpreter.entry import interpreting
from perfguard.interpreter.formats import FP8, decoded, encoded, sum_to_odd
from tests.interpreter.table import BEGIN, DTYPES, END, OPERATIONS, PAGE, cell


def documented() -> dict[str, list[str]]:
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {name.strip("`"): [each.partition(" / ")[0] for each in cells] for name, *cells in rows}


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_is_right_for_every_dtype(op: str) -> None:
    with interpreting():
        cells = [cell(op, dtype) for dtype in DTYPES]
    assert set(cells) <= {"right", "–"}
    assert "right" in cells
    assert documented()[op] == cells


@pytest.mark.parametrize("name", FP8)
def test_a_float_of_8_bits_is_the_nearest(name: str) -> None:
    """By brute force, so that formats that PyTorch lacks are held to the same."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = decoded(codes, name).astype(np.float64)
    finite = np.isfinite(numbers)
    assert np.array_equal(decoded(encoded(numbers, name), name)[finite], numbers[finite])
    ascending = np.unique(numbers[finite])
    middles = (ascending[1:] + ascending[:-1]) / 2
    given = np.concatenate([middles, np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf)])
    got = encoded(given, name)
    distance = np.abs(ascending[None, :] - given[:, None])
    assert np.array_equal(np.abs(decoded(got, name) - given), distance.min(1))
    assert not (got[: len(middles)] & 1).any()  # of two as near, the even one
    beyond = decoded(encoded(np.array([1e9, -1e9, np.inf, np.nan]), name), name)
    assert np.isnan(beyond[3]) == (FP8[name].nan is not None)
    largest = ascending[-1] if FP8[name].beyond == FP8[name].largest else np.nan
    assert np.array_equal(np.abs(beyond[:3]), [largest] * 3, equal_nan=True)
    cut = decoded(encoded(given, name, truncate=True), name)
    assert (np.abs(cut) <= np.abs(given)).all()
    assert (distance.min(1) <= np.abs(cut - given)).all()


def test_bfloat16_is_rounded_once() -> None:
    """Between two neighbours, from float64 too, where rounding to float32 first would make a tie of it."""
    tie = 1 + 2.0**-8
    given = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, 3.0e38, np.nan, -0.0])
    got = decoded(encoded(given, "bf16"), "bf16")
    assert np.array_equal(got[:3], [1, 1 + 2.0**-7, 1])
    assert np.isnan(got[4])
    assert np.signbit(got[5])


def test_a_product_and_sum_is_rounded_once() -> None:
    """The product is a tie of two float32, and what is added lies below the last bit of the float64 beside it."""
    product = np.full(5, 24929 * 2.0**-24) * 673  # 1 + 2**-24
    added = np.array([2.0**-80, -(2.0**-80), 0, np.inf, np.nan], dtype=np.float32)
    got = sum_to_odd(product, added).astype(np.float32)
    assert np.array_equal(got, np.array([1 + 2.0**-23, 1, 1, np.inf, np.nan], dtype=np.float32), equal_nan=True)
