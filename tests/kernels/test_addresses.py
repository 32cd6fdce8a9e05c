"""No address wraps, however large the tensors: every kernel's offsets, computed from Triton's IR of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import elsewhere
from tests.nursery import Nursery

# Two minutes of processor time. With every change each kernel is run in the interpreter on tensors whose offsets pass
# 2^31: `test_offsets_past_two_to_the_31` of each family.
pytestmark = pytest.mark.nightly
KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.fixture(scope="module")
def launches(nursery: Nursery) -> list[dict[str, Any]]:
    """Of all public kernels on the largest tensors in all layouts, in a process whose kernels are not interpreted."""
    return elsewhere.compiled(nursery, "addresses")


def test_no_address_wraps(launches: list[dict[str, Any]]) -> None:
    """A number of 32 bits that sizes take past 2^31 is named with its line, and offsets stay below 2^63."""
    assert {(*line, one["case"]) for one in launches for line in one["wraps"]} == set()
    for one in launches:
        assert one["addresses"], one
        assert one["largest"] < 2**63, one
        assert one["programs"] < 2**31, one  # of a grid


def test_tensors_are_as_large_as_they_have_to_be(launches: list[dict[str, Any]]) -> None:
    """Offsets of all kernels pass 2^31 but where they have descriptors, or what 32 bits end: else nothing is asked."""
    largest: dict[str, int] = {}
    for one in launches:
        largest[one["kernel"]] = max(one["largest"], largest.get(one["kernel"], 0))
    assert {kernel.removeprefix("kernels.") for kernel, offset in largest.items() if offset < 2**31} == {
        "grouped.specialised.multiply_groups", "operators.scatter._place",
    }  # fmt: skip


def test_every_kernel_is_asked(launches: list[dict[str, Any]]) -> None:
    """A kernel is a jit function that no other one names."""
    functions, named = set(), set()
    for path in KERNELS.rglob("*.py"):
        module = ".".join(path.relative_to(KERNELS.parent).with_suffix("").parts)
        body = ast.parse(path.read_text(encoding="utf-8")).body
        imports = [node for node in body if isinstance(node, ast.ImportFrom)]
        origin = {each.name: node.module for node in imports for each in node.names}
        for node in body:
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(each) for each in node.decorator_list):
                functions.add(f"{module}.{node.name}")
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - {node.name}
                named |= {f"{origin.get(name, module)}.{name}" for name in names}
    assert functions - named == {one["kernel"] for one in launches}


def test_what_is_argued_is_needed(launches: list[dict[str, Any]]) -> None:
    source = ast.parse((KERNELS.parent / "tests" / "kernels" / "addresses.py").read_text(encoding="utf-8"))
    (argued,) = (
        node.value for node in source.body if isinstance(node, ast.AnnAssign) and "ARGUED" in ast.unparse(node)
    )
    assert isinstance(argued, ast.Dict)
    assert {tuple(line) for one in launches for line in one["argued"]} == {
        ast.literal_eval(key) for key in argued.keys if key is not None
    }
