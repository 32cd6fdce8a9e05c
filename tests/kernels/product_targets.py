"""Compile the float8 products for an architecture that need not be here, and say what came out.

    python -m tests.kernels.product_targets sm_90

A process of its own, because the tests define the kernels as interpreted functions. Prints one JSON object for each
compiled kernel, as `grouped_targets.py` does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.fp8 import products, specialised
from kernels.fp8.launch_products import Form, candidates
from kernels.grouped.configs import Config
from tests.kernels.grouped_targets import facts, target_of

FORMS: tuple[Form, ...] = ("rows", "groups")


def build(arch: str, form: Form, config: Config, accurate: bool) -> Any:
    """The compiled kernel, specialised as the launcher's arguments would; all widths are multiples of 16."""
    module: Any = specialised if config.specialised else products
    kernel = module.multiply_rows if form == "rows" else module.multiply_groups
    constants: dict[str, Any]
    types = {f"{name}_ptr": "*fp8e4nv" for name in "ab"} | {f"{name}_inverse_ptr": "*fp32" for name in "ab"}
    types |= {"out_ptr": "*bf16", "offs_ptr": "*i32"}
    options = {"num_warps": config.warps}
    if config.specialised:
        constants = {"BAND": config.band, "STAGES": config.stages}
        for name, depth in (("descriptor", config.depth), ("piece", specialised.PIECE)):
            layout = specialised.operand_layout(depth)
            types[f"a_{name}"] = f"tensordesc<fp8e4nv{[config.height, depth]},{layout!r}>"
            types[f"b_{name}"] = f"tensordesc<fp8e4nv{[config.width, depth]},{layout!r}>"
        out_tile = [1, config.height // 2, specialised.OUT_COLUMNS]
        types["out_descriptor"] = f"tensordesc<bf16{out_tile},{specialised.layout_16_bit(3)!r}>"
    else:
        constants = {"ACCURATE": accurate, "config": config}
        options["num_stages"] = config.stages
        b_tile = [config.width, config.depth]
        if form == "rows":
            constants["GROUPS"] = 128
            b_tile = [1, *b_tile]
        types["a_descriptor"] = f"tensordesc<fp8e4nv{[config.height, config.depth]}>"
        types["b_descriptor"] = f"tensordesc<fp8e4nv{b_tile}>"
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    divisible = [
        index
        for index, name in enumerate(names)
        if name not in ("groups", "rows") and (signature[name].startswith("*") or signature[name] == "i32")
    ]
    source = (GluonASTSource if config.specialised else ASTSource)(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index in divisible},
    )
    return triton.compile(source, target=target_of(arch), options=options)


def main(arch: str) -> None:
    for form in FORMS:
        for fast in (True, False):
            for number, config in enumerate(candidates(arch, 4096, fast)):
                compiled = build(arch, form, config, not fast)
                named = {"form": form, "fast": fast, "candidate": number, "specialised": config.specialised}
                found = facts(compiled) | {"registers_moved": compiled.asm["ptx"].count("setmaxnreg")}
                print(json.dumps(named | found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
