"""Triton's interpreter, made faster for tests."""

from __future__ import annotations

from typing import Any


def patch_the_language_once_a_launch() -> None:
    """Halve the interpreter's time.

    It replaces every function of triton.language by an interpreted one, and it does so again at each call of
    a device function (`tl.max` is one), of which the first in a launch changes something. Here the others
    are left out. A Triton without these names is as slow as it was.
    """
    from triton import language
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    launch = getattr(interpreter, "GridExecutor", None)
    if patch is None or launch is None:
        return
    run = launch.__call__
    patched: set[tuple[bool, bool]] = set()

    def patch_once(fn: Any) -> Any:
        names = list(fn.__globals__.values())
        visible = (any(name is language for name in names), any(name is language.core for name in names))
        if visible in patched:
            return None
        patched.add(visible)
        return patch(fn)

    def run_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return run(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    launch.__call__ = run_afresh
