"""Operations that a kernel's author requests by name, beyond arithmetic, loads and stores: counted in the first IR.

No pass has run on that IR, so other tiles or compiler schedules do not change the counts. A removed operation may mean
a race, or a slowdown on another chip, neither of which a run's numbers need to show.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_OPERATION = re.compile(
    r'^\s*(?:%[\w:#, %]+ = )?"?(?:tt|ttg|ttng|gpu|nvvm|rocdl|amdg|amdgpu)\.(\w+)"?(.*)$', re.MULTILINE
)
_ORDERS = re.compile(r"barrier|wait|fence|commit|sleep")
_INLINE = re.compile(r"\b(?:griddepcontrol|fence|membar|mbarrier|bar|barrier|s_waitcnt|s_barrier)\b[\w.:]*")
_MODIFIER = re.compile(r"(?:cache_modifier|cacheModifier) = (\w+)")
_EVICTION = re.compile(r"(?:eviction_policy|evictionPolicy) = (\w+)")
_LOCATION = re.compile(r"^#loc.*$|\s*loc\([^\n]*\)$", re.MULTILINE)
_UNSAID = ("none", "evict_normal", "1")  # default values of both attributes, by name and by number


def asked(assembly: Mapping[str, Any]) -> str:
    """`2 atomic_rmw fadd acq_rel gpu, 1 load volatile, 3 wait_barrier`; "" if there are none.

    Args:
        assembly: the stages of a compiled kernel by name, as in Triton's `asm`.
    """
    found: Counter[str] = Counter()
    for name, rest in _OPERATION.findall(_first_stage(assembly)):
        if name.startswith("atomic"):
            words = [word.strip() for word in rest.split("%")[0].split(",")]
            found[" ".join([name, *filter(None, words)])] += 1
        elif name == "elementwise_inline_asm":
            found.update(_INLINE.findall(rest))
        elif _ORDERS.search(name):
            found[name] += 1
        elif hints := _hints(rest):
            found[f"{name} {hints}"] += 1
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items()))


def written(assembly: Mapping[str, Any]) -> str:
    """Hash of the code as the author wrote it, independent of comments, names of variables and line numbers."""
    return hashlib.sha256(_LOCATION.sub("", _first_stage(assembly)).encode()).hexdigest()[:16]


def _first_stage(assembly: Mapping[str, Any]) -> str:
    return next((str(assembly[stage]) for stage in ("source", "ttir", "ttgir") if stage in assembly), "")


def unspecialised(parameters: Any) -> tuple[str, ...]:
    """The parameters among a kernel's `params` that the decorator excludes from specialisation."""
    return tuple(each.name for each in parameters if each.do_not_specialize and not each.is_constexpr)


def _hints(attributes: str) -> str:
    said = [found[1] for pattern in (_MODIFIER, _EVICTION) if (found := pattern.search(attributes))]
    volatile = ["volatile"] if "isVolatile = true" in attributes else []
    return " ".join(volatile + [word for word in said if word not in _UNSAID])
