"""Untrusted JSON: strict UTF-8, no repeated keys, no NaN, no deep nesting, no overlong numbers."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from perfguard.model.errors import LaneError


def check_json(data: bytes) -> None:
    """Accept only JSON that every parser reads alike.

    msgspec parses it afterwards. On its own it would silently keep the last of two equal keys.

    Raises:
        LaneError: with the reason.
    """
    try:
        json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise LaneError(f"no UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise LaneError("nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, and integers of more digits than Python converts
        raise LaneError(f"no JSON ({str(error)[:200]})") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise LaneError(f"the key {key[:100]!r} twice in one object")
            seen.add(key)
    return found


def _no_number(token: str) -> NoReturn:
    raise LaneError(f"{token} is no JSON; a reading that is no number is written as null")
