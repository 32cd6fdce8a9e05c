"""Compile the grouped product for an architecture that need not be here, and say what came out.

    python -m tests.kernels.grouped_targets sm_90 gfx942 [all]

A process of its own, because the tests define the kernels as interpreted functions. Prints one JSON object for each
compiled kernel: what it asks of the chip, and the instructions that show which way it took.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.grouped import specialised
from kernels.grouped.configs import Config, Form, candidates
from kernels.grouped.groups import multiply_groups
from kernels.grouped.rows import multiply_rows
from kernels.hardware import hardware_of

KERNELS = {"rows": multiply_rows, "groups": multiply_groups}
# What a layer of stored (E, N, K) weights runs: the form, and whether b's inner dimension is the contiguous one.
LAYOUTS: dict[str, tuple[Form, bool]] = {
    "forward": ("rows", True),
    "dgrad": ("rows", False),
    "wgrad": ("groups", False),
}


def target_of(arch: str) -> GPUTarget:
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    width = hardware_of(arch).wave_width
    assert width is not None, f"{arch}: its wave width is not in kernels/hardware.py"
    return GPUTarget("hip", arch, width)


def build(arch: str, layout: str, config: Config, dtype: str = "bf16", aligned: bool = True) -> Any:
    """The compiled kernel, specialised as the launcher's arguments would; not `aligned`: no stride divides by 16."""
    if config.specialised:
        return _build_specialised(arch, config, dtype)
    form, b_transposed = LAYOUTS[layout]
    kernel = KERNELS[form]
    described = config.descriptors and aligned
    constants: dict[str, Any] = {"DESCRIBED": described, "config": config}
    types = {"a_ptr": f"*{dtype}", "b_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "offs_ptr": "*i32"}
    if form == "rows":
        constants |= {"GROUPS": 128, "EVEN": aligned, "B_TRANSPOSED": described and b_transposed}
        a_block, b_block = [config.height, config.depth], [config.depth, config.width]
        b_block = [1, *(b_block[::-1] if b_transposed else b_block)]
    else:
        a_block, b_block = [config.depth, config.height], [config.depth, config.width]
    constants |= dict.fromkeys(("stride_ak", "stride_bk" if b_transposed else "stride_bn"), 1)
    if described:
        types |= {"a_descriptor": f"tensordesc<{dtype}{a_block}>", "b_descriptor": f"tensordesc<{dtype}{b_block}>"}
    else:
        constants |= {"a_descriptor": None, "b_descriptor": None}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    divisible = [
        index
        for index, name in enumerate(names)
        if name not in ("groups", "rows")
        and (signature[name].startswith("*") or (aligned and signature[name] == "i32"))
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index in divisible},
    )
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return triton.compile(source, target=target_of(arch), options=options)


def _build_specialised(arch: str, config: Config, dtype: str) -> Any:
    """The gradient of the weights with a warp that loads; all widths are multiples of 16."""
    kernel = specialised.multiply_groups
    constants = {"BAND": config.band, "STAGES": config.stages}
    half = config.height // 2
    tiles = {"a": [config.depth, half], "b": [config.depth, config.width], "out": [1, half, config.width]}
    types = {
        f"{name}_descriptor": f"tensordesc<{dtype}{tile},{specialised.layout_16_bit(len(tile))!r}>"
        for name, tile in tiles.items()
    }
    types["offs_ptr"] = "*i32"
    names = kernel.arg_names
    source = GluonASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else types.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]] for name in names if name in ("offs_ptr", "inner", "outer")
        },
    )
    return triton.compile(source, target=target_of(arch), options={"num_warps": config.warps})


def facts(compiled: Any) -> dict[str, int]:
    """Resources and instructions, from the binary and its assembly."""
    found = {"shared_bytes": compiled.metadata.shared}
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size"):
            found[name] = int(re.findall(rf"\.{name}:\s+(\d+)", text)[0])
        found |= {f"coherent_{what}s": len(re.findall(rf"_{what}_dword .* sc1", text)) for what in ("load", "store")}
        return found | {"mfma": text.count("v_mfma"), "wide_loads": text.count("load_dwordx4")}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    text = compiled.asm["ptx"]
    return found | {
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "wgmma": text.count("wgmma.mma_async"),
        "bulk_loads": text.count("cp.async.bulk.tensor"),
        "async_loads": len(re.findall(r"cp\.async\.c[ag]", text)),
    }


def main(arch: str, every: bool) -> None:
    for layout, (form, _) in LAYOUTS.items():
        configs = candidates(arch, form, 2, 4096, True)
        for number, config in enumerate(configs if every else configs[:1]):
            found = facts(build(arch, layout, config))
            named = {"arch": arch, "layout": layout, "candidate": number, "specialised": config.specialised}
            print(json.dumps(named | found), flush=True)
    if every:
        wide = candidates(arch, "rows", 4, 4096, True)
        for number, config in enumerate(wide):
            found = facts(build(arch, "forward", config, dtype="fp32"))
            print(json.dumps({"arch": arch, "layout": "forward fp32", "candidate": number} | found), flush=True)
        for layout, (form, _) in LAYOUTS.items():
            for number, config in enumerate(candidates(arch, form, 2, 4096, False)):
                found = facts(build(arch, layout, config, aligned=False))
                named = {"arch": arch, "layout": f"{layout} unaligned", "candidate": number}
                print(json.dumps(named | found), flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "all":
            main(name, every="all" in sys.argv[2:])
