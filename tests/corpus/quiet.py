"""Section 2: events that look like a regression and are none. They raise nothing, and the right word is said."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.planting import Append, Change, Edit, Expect, Mutant, Rewrite
from tests.corpus.hygiene import nothing, removed

LAYER, RECOMPUTE, ROWS = "kernels/moe/layer.py", "kernels/moe/recompute.py", "kernels/moe/rows.py"
ALL = ("*",)


def quiet(
    name: str, seen: str, change: Change | tuple[Change, ...], expect: Expect, *arguments: str, suite: str = "moe"
) -> Mutant:
    changes = change if isinstance(change, tuple) else (change,)
    return Mutant(f"event: {name}", ("K37",), seen, suite, changes, {"C": expect}, arguments)


def moved_kernel(root: Path) -> None:
    """The module under another name."""
    (root / RECOMPUTE).rename(root / "kernels/moe/recomputing.py")
    for path in (root / "kernels/moe").glob("*.py"):
        path.write_text(path.read_text().replace("kernels.moe.recompute ", "kernels.moe.recomputing "))


# The records were made with another torch, which made fewer operators of the same code.
another_torch = Rewrite("baselines/*/*.yaml", r"torch: [^,}\n]+", "torch: 2.11.0")
one_operator_fewer = Rewrite(
    "baselines/cpu/test_moe.yaml", r"\boperators: (\d+)", lambda found: f"operators: {int(found[1]) - 1}", times=None
)


def forgotten(root: Path) -> None:
    """The case and its entries."""
    test = root / "test_moe.py"
    text = test.read_text()
    start, end = text.index("def test_spread("), text.index("def test_shared(")
    test.write_text(text[:start] + text[end:])
    for path in sorted((root / "baselines").rglob("*.yaml")):
        kept, here = [], False
        for line in path.read_text().splitlines(keepends=True):
            if re.match(r"  \S", line):
                here = line.startswith("  spread/")
            elif not line.startswith("    "):
                here = False
            kept += [] if here else [line]
        path.write_text("".join(kept))


EXTRA = """
@pytest.mark.parametrize("count", [48])
def test_more(perfguard: Any, count: int) -> None:
    layer = MoE(config(perfguard), device=perfguard.device, dtype=torch.bfloat16).eval()
    x = tokens(perfguard, count, layer.config.dim).requires_grad_()
    perfguard(layer, x, reference=functools.partial(reference.moe, layer), timed=x.device.type != "cpu")
"""

# A working tree that is not the base, so that the base is asked.
NOTHING = Append(RECOMPUTE, "# Nothing.")

MUTANTS = [
    quiet("nothing at all", "-", nothing, Expect("PASS", cases=ALL)),
    quiet(
        "comments, docstrings and blank lines", "-",
        (
            Edit(LAYER, "        routing = self.router(", "        # Which experts.\n\n        routing = self.router("),
            Edit(RECOMPUTE, '"""Bf16 experts and combine', '"""Bf16 experts, and combine'),
        ),
        Expect("PASS", cases=ALL),
    ),
    quiet("a renamed file of a kernel", "-", moved_kernel, Expect("PASS", cases=ALL)),
    quiet("a selection of cases", "-", nothing, Expect("PASS", cases=ALL), "-k", "spread or shared"),
    quiet(
        "a reordered suite", "-",
        Append("conftest.py", "def pytest_collection_modifyitems(items):\n    items.reverse()"),
        Expect("PASS", cases=ALL),
    ),
    quiet("a new case", "-", Append("test_moe.py", EXTRA), Expect("NEW", cases=("more[48]/*",))),
    quiet(
        "a new file", "-", lambda root: (root / "test_more.py").write_text(
            (root / "test_moe.py").read_text().replace("def test_", "def test_other_")
        ) and None,
        Expect("NEW", cases=("other_*",)),
    ),
    quiet("a case removed with its entries", "-", forgotten, Expect("PASS", cases=ALL)),
    quiet("the first run ever", "-", removed, Expect("NEW", cases=ALL)),
    quiet(
        "another torch makes one operator more", "intel-xpu-backend#7834, #7835",
        (another_torch, one_operator_fewer, NOTHING), Expect("PASS", cases=ALL),
    ),
    quiet(
        "fewer operators, less memory", "-",
        Edit("kernels/moe/experts.py", "offs = torch.full((1,), x_TD.shape[0], dtype=torch.int32, device=x_TD.device)",
             "offs = w1_1FD  # which nobody reads in bf16"),
        Expect("CHANGED (better)", "operators", cases=("layer[*]/forward", "shared/forward")),
    ),
    quiet(
        "another order of summation", "FI#3829",
        Edit(
            ROWS,
            "    for choice, part in enumerate(_by_choice(rows, plus, inverse, total.dtype)):\n        total +=",
            "    order = list(enumerate(_by_choice(rows, plus, inverse, total.dtype)))\n"
            "    for choice, part in reversed(order):\n        total +=",
        ),
        Expect("PASS", cases=ALL),
    ),
]  # fmt: skip
