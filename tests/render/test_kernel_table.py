"""The table of kernels that two compilers make differently."""

from __future__ import annotations

from perfguard.model.records import Reading
from perfguard.model.units import Unit
from perfguard.render.tables import kernel_rows, kernel_table


def readings(**values: dict[str, object]) -> list[Reading]:
    return [Reading(f"sm_90.{column}", Unit.COUNT, value, target="sm_90") for column, value in values.items()]  # type: ignore[arg-type]


def test_a_row_holds_what_differs_and_equal_kernels_have_none() -> None:
    base = readings(spills={"rows": 0, "sums": 4}, registers={"rows": 40, "sums": 32})
    work = readings(spills={"rows": 12, "sums": 4}, registers={"rows": 40, "sums": 32})
    rows = kernel_rows(base, work)
    assert rows == [("rows", "sm_90", "0 -> 12", "", "", "", "")]
    assert kernel_table([*rows, *rows]) == [
        "kernels with other binaries: 1",
        "kernel  target  spills   registers  instructions  shared",
        "rows    sm_90   0 -> 12",
    ]
    assert kernel_table(kernel_rows(base, base)) == []


def test_a_kernel_that_no_longer_fits_says_so() -> None:
    (row,) = kernel_rows(readings(unfit={"rows": ""}), readings(unfit={"rows": "shared memory 300 KiB of 227"}))
    assert row[-1] == "fits -> shared memory 300 KiB of 227"


def test_more_rows_than_the_most_are_counted() -> None:
    rows = [(f"kernel_{number}", "sm_90", "0 -> 1", "", "", "", "") for number in range(70)]
    assert kernel_table(rows)[-1] == "… and 10 more"
