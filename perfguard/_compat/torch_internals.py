"""torch: operators, storages, events of the profiler, pools of a capture. Torch is imported when a name is used."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from perfguard._compat.private import Private, privates

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload as OpOverload  # noqa: PLC0414  # Other rooms import it.

_SEEN = "seeing the operators inside a library's operator"
_SCRIPT = "leaving TorchScript alone"
_TRANSFORMS = "finding the tensors that torch.func's transforms save"
_FAKES = "comparing fake implementations with their operators"
_CAPTURE = "leaving the pool of a capture that failed"

OVERLOAD = Private("torch._ops", "OpOverload", "naming operators")
MODES = Private("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack", _SEEN)
WITHOUT_TOP = Private("torch.utils._python_dispatch", "_pop_mode_temporarily", _SCRIPT)
TRACERS = Private("torch.jit._trace", "_trace_impl", _SCRIPT), Private("torch.jit", "_get_trace_graph", _SCRIPT)
GRAPH = Private("torch", "_C.Graph", _SCRIPT)
SCRIPT_METHOD = Private("torch", "_C.ScriptMethod", _SCRIPT)
KEYS = Private("torch", "_C._dispatch_keys", _SEEN)
KEYSET_AFTER = Private("torch", "_C._dispatch_keyset_full_after", _SEEN)
DISPATCH_KEY = Private("torch", "_C.DispatchKey", _SEEN)
CUSTOM = Private("torch._library.custom_ops", "OPDEFS", "following operators that a user made of Triton kernels")
DESCRIBED = Private("torch._library.simple_registry", "singleton", _FAKES)
IMPLEMENTED = Private("torch.library", "_impls", _FAKES)
DEFINED = Private("torch.library", "_defs", _FAKES)
FAKE_MODE = Private("torch._subclasses.fake_tensor", "FakeTensorMode", _FAKES)
EVENT = Private("torch._C._profiler", "_EventType", "reading the profiler's allocations")
DEVICE_TYPE = Private("torch.autograd", "DeviceType", "telling the profiler's device work from the host's")
END_ALLOCATE = Private("torch", "_C._cuda_endAllocateToPool", _CAPTURE)
RUN_BACKWARD = Private("torch.autograd", "_engine_run_backward", "seeing the graphs that a test differentiates")
IS_TRANSFORMED = Private("torch", "_C._functorch.is_functorch_wrapped_tensor", _TRANSFORMS)
UNWRAPPED = Private("torch", "_C._functorch.get_unwrapped", _TRANSFORMS)
RELEASE_POOL = Private("torch", "_C._cuda_releasePool", _CAPTURE)

#: Torch's and Triton's own Python calls these functions for a GPU, even if there is none.
ASKED_OF_GPU = privates(
    "torch.cuda", "following a call for a GPU that is not here", "_lazy_init _exchange_device _maybe_exchange_device"
)

#: Only a torch that is built for GPUs has these names.
ONLY_WITH_GPU = (
    END_ALLOCATE,
    RELEASE_POOL,
    Private("torch.cuda", "_sleep", "a wait on the device behind which work is enqueued"),
)

NAMES = (
    *TRACERS,
    *privates("torch._C", _SEEN, "DispatchKey.CompositeImplicitAutograd DispatchKey.Python"),
    *privates("torch._ops", _SEEN, "OpOverload.has_kernel_for_dispatch_key OpOverload.redispatch"),
    Private("torch", "ops.aten.add.Tensor._schema", "names of an operator's arguments"),
    Private("torch", "ops.aten.add.Tensor._op", "calling operators that are followed"),
    Private("torch", "UntypedStorage._cdata", "telling storages apart"),
    Private("torch", "Tensor._version", "writes of the values that were there"),
    *privates("torch._C._autograd", "counting what a graph has saved", "SavedTensor.data"),
    Private("torch._C._profiler", "_EventType.Allocation", "reading the profiler's allocations"),
)


def schema_of(operator: Any) -> Any:
    """An operator's schema, with its name and its arguments."""
    return operator._schema


def writes_of(value: Any) -> int:
    """How often a tensor was written, as torch counts it, be it with its own values; 0 where it does not."""
    return 0 if not hasattr(value, "is_inference") or value.is_inference() else int(value._version)


def call_of(operator: Any) -> Callable[..., Any]:
    """The function that an operator (OpOverload) calls. Calling it directly saves a frame of Python."""
    call: Callable[..., Any] = operator._op
    return call


def storage_address(tensor: torch.Tensor) -> int:
    """An address that tensors in the same storage share, as long as the storage lives."""
    return address_of(tensor.untyped_storage())


#: The address of a storage, as `storage_address` returns it.
address_of: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")


def below_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that torch.func's transforms (grad, vmap) have wrapped; other tensors are returned unchanged."""
    is_transformed, unwrapped = _transforms()
    while is_transformed(tensor):
        tensor = unwrapped(tensor)
    return tensor


@functools.cache  # Every saved tensor needs it.
def _transforms() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return IS_TRANSFORMED.get(), UNWRAPPED.get()


#: Namespaces of torch's own operators.
TORCH_NAMESPACES = frozenset(
    "aten prim prims rngprims debugprims mkldnn mkl onednn c10d c10d_functional _c10d_functional "  # noqa: SIM905
    "_c10d_functional_autograd symm_mem fsdp flex_lib onnx onnx_symbolic _native _dtensor _inductor_test inductor "
    "debug_mode_ops export streams profiler higher_order".split()
)


def has_custom_operators() -> bool:
    """Whether torch.library.custom_op made an operator outside torch's namespaces in this process."""
    return any(name.partition("::")[0] not in TORCH_NAMESPACES for name in [*CUSTOM.get()])


def has_own_fakes() -> bool:
    """Whether this process has a fake implementation of an operator outside torch's namespaces."""
    return any(name.partition("::")[0] not in TORCH_NAMESPACES for name in _registered_fakes())


def has_own_fake(operator: Any) -> bool:
    """Whether an operator outside torch's namespaces has a fake implementation."""
    name = str(schema_of(operator).name)
    return name.partition("::")[0] not in TORCH_NAMESPACES and name in _registered_fakes()


def _registered_fakes() -> set[str]:
    """Names of all operators whose fake implementation was registered from Python, in either of torch's tables."""
    registered = getattr(DESCRIBED.get(), "_data", {})
    from_python = {name for name, entry in registered.items() if entry.fake_impl.kernel is not None}
    parts = [each.split("/") for each in IMPLEMENTED.get() if each.endswith("/Meta")]
    defined: set[str] = DEFINED.get()
    return from_python | ({f"{space}::{name.partition('.')[0]}" for space, name, _ in parts} & defined)


def fake_mode() -> Any:
    """A mode in which operators return fake tensors, which have shapes but no data."""
    return FAKE_MODE.get()(allow_non_fake_inputs=True)


def is_missing_fake(error: BaseException) -> bool:
    """Whether torch has raised because an operator's results depend on data, or its fake implementation is missing."""
    of_torch = type(error).__module__ == FAKE_MODE.module
    return of_torch or isinstance(error, NotImplementedError) or "no fake impl" in str(error)


def own_implementation(operator: Any) -> Any:
    """The Python function that an operator made by torch.library.custom_op runs on a GPU; None for other operators."""
    definition = CUSTOM.get().get(schema_of(operator).name)
    if definition is None:
        return None
    by_device = getattr(definition, "_backend_fns", {})
    return by_device.get("cuda") or by_device.get(None)


@contextlib.contextmanager
def unseen_by_torchscript(mode: Any) -> Iterator[None]:
    """Leave a dispatch mode while TorchScript traces or runs a function. Under a mode the tracer sees each operator
    twice, and TorchScript's interpreter passes wrong arguments."""
    import torch

    def outside(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if MODES.get()()[-1:] != [mode]:
                return original(*args, **kwargs)
            with WITHOUT_TOP.get()():
                return original(*args, **kwargs)

        return run

    # Functions below `torch.jit.trace` are replaced, because a module may have imported `trace` itself.
    entries = [(torch.jit, "trace_module"), (torch.jit.ScriptFunction, "__call__"), (SCRIPT_METHOD.get(), "__call__")]
    entries += [(GRAPH.get(), "__str__"), (GRAPH.get(), "__repr__")]  # Both compute on the graph's constants.
    entries += [(sys.modules[each.module], each.name) for each in TRACERS if each.get()]
    with replaced([(owner, name, outside(getattr(owner, name))) for owner, name in entries]):
        yield


@contextlib.contextmanager
def backward_noted(note: Callable[[Any], None]) -> Iterator[None]:
    """Call `note` with the outputs of each backward pass that begins inside."""
    import torch

    original = RUN_BACKWARD.get()

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            note(outputs)
        return original(outputs, *args, **kwargs)

    with replaced([(torch.autograd, RUN_BACKWARD.name, run)]):
        yield


@contextlib.contextmanager
def replaced(entries: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace attributes while inside; entries are (owner, name, replacement). `mock.patch.object` takes twice as long,
    and every observed test does this."""
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in entries]
    for owner, name, replacement in entries:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in before:
            if original is None:
                delattr(owner, name)  # The attribute was inherited.
            else:
                setattr(owner, name, original)


def leave_pool(index: int, pool: Any) -> None:
    """Leave the pool that a failed capture keeps the allocator in; torch has no public function for it."""
    with contextlib.suppress(Exception):  # This raises if torch has left the pool itself; torch then releases it too.
        END_ALLOCATE.get()(index, pool)
        RELEASE_POOL.get()(index, pool)


def spin_of(backend: Any) -> Callable[[int], None] | None:
    """The backend's kernel that waits for a number of cycles; None if it has none, as torch.xpu."""
    spin: Callable[[int], None] | None = getattr(backend, "_sleep", None)
    return spin
