"""Triton's first IR of a kernel, independent of names: equal for equal work, whatever it is called."""

from __future__ import annotations

import re

# `tt.func private @"helpers.add__fp32"(%arg0: f32)`
_FUNCTION = re.compile(r'\btt\.func (?:public |private )?@("[^"]*"|[\w.$-]+)')
_SYMBOL = re.compile(r'@("[^"]*"|[\w.$-]+)')
_TARGET = re.compile(r'"?ttg\.target"? = "[^"]*",? ?')


def canonical(ir: str) -> str:
    """The IR, printed without locations, with its functions numbered by their order and without the target's name.

    Triton prints its values as numbers within each function. Functions that a kernel calls follow it in the order of
    their first call.
    """
    numbers = {name: f"@{number}" for number, name in enumerate(dict.fromkeys(_FUNCTION.findall(ir)))}
    return _SYMBOL.sub(lambda found: numbers.get(found[1], found[0]), _TARGET.sub("", ir))
