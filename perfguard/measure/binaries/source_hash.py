"""A hash of the code that a kernel depends on, independent of comments, paths, line numbers and formatting."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec
from msgspec import Struct

from perfguard.model.atomic_files import write_atomically

# These packages are identified by their versions, which are part of the toolchain.
_TOOLCHAIN = {"torch", "triton", "numpy", "pytest", "perfguard"}

_FORMAT = 2  # This is the version of `_File`'s content.


class _File(Struct, frozen=True):
    """The result of reading one file. `state` changes with the file, and with the version of this format."""

    state: str
    digest: str
    imported: list[str]


Described = tuple[str, frozenset[str]]  # hash of a module's own statements, and the imported names


class Sources:
    """Hashes of modules with all modules that they import, for as long as no file changes.

    Attributes:
        known: the modules read so far, by name.

    Args:
        cache: a file that keeps the results of unchanged files. A library may import hundreds of modules, and parsing
            them takes seconds in every process.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self.known: dict[str, Described] = {}
        self._cache = cache
        self._files: dict[str, _File] = {}
        self._read_now = 0  # number of files parsed since the cache was written
        if cache is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # The cache is absent or has another version.
                self._files = msgspec.json.decode(cache.read_bytes(), type=dict[str, _File])

    def hash_of(self, *modules: str) -> str:
        """Hash of the code of loaded modules and of all code that they import, without the toolchain's; empty if the
        first module is not loaded. It is independent of other modules that the process has loaded."""
        if modules[0] not in sys.modules:
            return ""
        reached: set[str] = set()
        waiting = list(modules)
        while waiting:
            name = waiting.pop()
            if name not in reached and name in sys.modules:
                reached.add(name)
                waiting += self._read(sys.modules[name])[1]
        self._keep()
        described = sorted((name, self._read(sys.modules[name])[0]) for name in reached)
        return hashlib.sha256(repr(described).encode()).hexdigest()[:16]

    def _read(self, module: ModuleType) -> Described:
        name = module.__name__
        if name not in self.known:
            self.known[name] = self._described(module)
        return self.known[name]

    def _described(self, module: ModuleType) -> Described:
        """The hash and imports of a module, from the cache if its file has not changed."""
        path = str(getattr(module, "__file__", None) or "")
        try:
            status = os.stat(path)
        except OSError:
            return _described(module)
        state = f"{_FORMAT} {sys.version_info[:2]} {module.__name__} {status.st_mtime_ns} {status.st_size}"
        known = self._files.get(path)
        if known is None or known.state != state:
            digest, imported = _described(module)
            known = self._files[path] = _File(state, digest, sorted(imported))
            self._read_now += 1
        return known.digest, frozenset(known.imported)

    def _keep(self) -> None:
        if self._cache is None or not self._read_now:
            return
        self._read_now = 0
        with contextlib.suppress(OSError):  # An unwritable cache only costs time.
            write_atomically(self._cache, msgspec.json.encode(self._files))


def hash_of_function(function: Callable[..., object]) -> str:
    """Hash of a function's own code without its decorators, 8 hex digits; empty if its source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.decorator_list = []
    return hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest()[:8]


def _described(module: ModuleType) -> Described:
    file = getattr(module, "__file__", None)
    try:
        tree = ast.parse(Path(file).read_bytes()) if file and file.endswith(".py") else None
    except (OSError, SyntaxError):
        tree = None
    if tree is None:
        return f"unreadable {getattr(module, '__version__', '')}", frozenset()
    imported = frozenset(_imports(tree, module.__package__ or ""))
    return hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest(), imported


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that a module imports whenever it is loaded. Imports within functions are omitted: kernels see only
    globals, and whether such an import was executed depends on other tests."""
    for node in _reached(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            base = ".".join(filter(None, (above if node.level else "", node.module or "")))
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] not in _TOOLCHAIN | sys.stdlib_module_names)


def _reached(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `tree`, without those inside functions and those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (found for other in node.orelse for found in (other, *_reached(other)))
            continue
        yield node
        yield from _reached(node)


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
