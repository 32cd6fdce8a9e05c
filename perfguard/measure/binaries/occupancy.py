"""The limits of a target. Compilers do not check them: a block that fits on no processor still compiles."""

from __future__ import annotations

from perfguard.measure.binaries.launch_records import Facts
from perfguard.measure.binaries.targets import Target


def unfit(facts: Facts, target: Target) -> str:
    """The reason why a block cannot run on the target, `needs 96 KB, gfx942 has 64 KB`; empty if it can."""
    if facts.error:
        return facts.error
    if facts.threads > target.block_threads:
        return f"{facts.threads:,} threads, limit {target.block_threads:,}"
    if facts.shared_bytes > target.block_shared_bytes:
        needs, has = facts.shared_bytes / 1024, target.block_shared_bytes / 1024
        return f"needs {needs:.4g} KB, {target.name} has {has:.4g} KB"
    if facts.resident_warps is None:
        return (
            f"needs {facts.registers} registers in each of {facts.threads:,} threads, "
            f"{target.name} has {target.registers or 0:,}"
        )
    return ""
