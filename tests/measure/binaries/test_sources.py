"""What a kernel's hash depends on: its code and what that imports, nothing else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from perfguard.measure.binaries import source_hash
from perfguard.measure.binaries.source_hash import Sources

HELPER = "FACTOR = 2\n\n\ndef helped(x):\n    return x * FACTOR\n"
KERNEL = "import json\n\nimport torch\nfrom {helper} import helped\n\n\ndef kernel(x):\n    return helped(x)\n"


def hash_of(folder: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, helper: str) -> str:
    """Of two modules with these sources in a folder."""
    folder.mkdir()
    (folder / "of_helper.py").write_text(helper, encoding="utf-8")
    (folder / "of_kernel.py").write_text(kernel.format(helper="of_helper"), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for name in ("of_helper", "of_kernel"):
            patch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        importlib.import_module("of_kernel")
        found = Sources().hash_of("of_kernel")
        for name in ("of_helper", "of_kernel"):
            sys.modules.pop(name)
    return found


def test_the_code_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hash_of(tmp_path / "a", monkeypatch, KERNEL, HELPER)
    same = {
        "in another folder": (KERNEL, HELPER),
        "a comment": (KERNEL, "# twice\n" + HELPER),
        "a docstring": (KERNEL.replace("(x):\n", '(x):\n    """Doubles."""\n'), HELPER),
        "another line": ("\n\n\n" + KERNEL, HELPER),
        "formatting": (KERNEL, HELPER.replace("x * FACTOR", "(x   *   FACTOR)")),
    }
    for number, (why, sources) in enumerate(same.items()):
        assert hash_of(tmp_path / f"same{number}", monkeypatch, *sources) == first, why
    other = {
        "the kernel": (KERNEL.replace("helped(x)", "helped(x) + 1"), HELPER),
        "a constant of what it imports": (KERNEL, HELPER.replace("FACTOR = 2", "FACTOR = 3")),
    }
    for number, (why, sources) in enumerate(other.items()):
        assert hash_of(tmp_path / f"other{number}", monkeypatch, *sources) != first, why


def test_a_cache_parses_no_file_twice_and_notices_each_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process, too: what counts is the file's time and size. A broken cache is read anew."""
    cache, parsed = tmp_path / "cache" / "sources.json", list[str]()
    described = source_hash._described
    monkeypatch.setattr(source_hash, "_described", lambda module: parsed.append(module.__name__) or described(module))
    helper = tmp_path / "cached_helper.py"
    helper.write_text(HELPER)
    (tmp_path / "cached_kernel.py").write_text(KERNEL.format(helper="cached_helper"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("cached_kernel")
    first = Sources(cache).hash_of("cached_kernel")
    assert sorted(parsed) == ["cached_helper", "cached_kernel"]
    assert Sources(cache).hash_of("cached_kernel") == first == Sources().hash_of("cached_kernel")
    assert len(parsed) == 4  # the one without a cache
    helper.write_text(HELPER.replace("2", "33"))
    parsed.clear()
    other = Sources(cache).hash_of("cached_kernel")
    assert other != first
    assert parsed == ["cached_helper"]
    cache.write_text("{")
    assert Sources(cache).hash_of("cached_kernel") == other
