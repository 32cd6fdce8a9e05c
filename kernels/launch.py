"""From a call to a launch with little of the host: operators without layers, and launches that are prepared once.

`operator` registers what the dispatcher is to call. A `Launch` is a kernel with the constants of one plan: which
configuration, which dtypes, which static widths. Plans are cached functions of the packages, pure in (architecture,
dtypes, widths, layout), so what any architecture would run can be asked on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from kernels.jit import JITFunction, driver, knobs

Config = TypeVar("Config")
Function = TypeVar("Function", bound=Callable[..., Any])
MAX_CANDIDATES = 4  # configurations of a kernel and architecture


class Launch:
    """A kernel, the constants of its launches, and options of the compiler.

    Triton finds the binary of a launch anew each time: it binds all arguments, the constants among them, and describes
    them as text. Here binaries are kept by what Triton tells apart in the other arguments, and Triton is asked for a
    new kind of them only. Its hooks of a launch are called as ever, those of its search (`pre_run_hooks`) with each
    search. Where no CUDA driver launches (AMD, Intel, the interpreter, a recorder of launches) every call is Triton's
    own.
    """

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self.kernel = kernel
        self.constants = constants
        self._keeps = JITFunction is not None and isinstance(kernel, JITFunction)
        self._values = [constants[name] for name in kernel.arg_names if name in constants]
        self._specialised = [not parameter.do_not_specialize for parameter in kernel.params] if self._keeps else []
        self._binaries: dict[tuple[object, ...], Any] = {}

    def __call__(self, device: torch.device, programs: int, *arguments: Any) -> None:
        """Launch so many programs on `device`, that of the tensors, which need not be the current one.

        `arguments` are tensors, tensor descriptors, numbers and None, in the order of the kernel's parameters, in front
        of its constants.
        """
        # AMD's compiler tells more apart, the size of a tensor's memory for one.
        if not self._keeps or torch.version.cuda is None:
            with _current(device):
                self.kernel[(programs,)](*arguments, **self.constants)
            return
        current = driver.active.get_current_device()
        if current == device.index:
            self._launch(current, programs, arguments)
        else:
            with torch.cuda.device(device):
                self._launch(driver.active.get_current_device(), programs, arguments)

    def _launch(self, current: Any, programs: int, arguments: Sequence[Any]) -> None:
        key = (current, *map(_kind, arguments, self._specialised))
        binary = self._binaries.get(key)
        if binary is None:
            binary = self.kernel[(programs,)](*arguments, **self.constants)
            if binary is not None:
                self._binaries[key] = binary
            return
        stream = driver.active.get_current_stream(current)
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            binary[(programs, 1, 1)](*arguments, *self._values, stream=stream)
        else:  # the same, without 1 us for what hooks would be told
            how = stream, binary.function, binary.packed_metadata, None, None, None
            binary.run(programs, 1, 1, *how, *arguments, *self._values)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Within, `device` is the one that Triton launches on."""
    return nullcontext() if device.type == "cpu" else getattr(torch, device.type).device(device)  # type: ignore[no-any-return]


class Tiles:
    """Descriptors of a tensor in tiles, but for the tensor.

    Triton's own constructor, and Gluon's, check in 3 us a call what is a plan's to know: memory and strides of whole
    units.
    """

    def __init__(self, kind: type, **fields: object) -> None:
        """`fields` are all that the constructor of `kind` asks for besides `base`."""
        self._kind, self._fields = kind, fields

    def over(self, base: Tensor, shape: list[int] | None = None) -> object:
        """The descriptor of `base`, which starts on 16 bytes; `shape` where it is another in this call."""
        made = object.__new__(self._kind)
        made.__dict__.update(self._fields, base=base)
        if shape is not None:
            made.__dict__["shape"] = shape
        return made


def _kind(argument: Any, specialised: bool) -> object:
    """What Triton compiles for: a tensor's dtype and alignment to 16 bytes; of a number its width, and, where it is
    specialised, whether it is 1 or divides by 16."""
    kind = type(argument)
    if kind is int:
        width = "i32" if -(2**31) <= argument < 2**31 else "i64" if argument < 2**63 else "u64"
        if specialised:
            return 1 if argument == 1 else (argument % 16 == 0, width)
        return width
    if argument is None:
        return None
    if kind is Tensor or isinstance(argument, Tensor):
        return (argument.dtype,) if argument.data_ptr() % 16 else argument.dtype
    if hasattr(argument, "block_shape"):  # a descriptor, Triton's or Gluon's, whose layout is the plan's
        return argument.base.dtype, *argument.block_shape
    return kind


def pick(configs: Sequence[Config], candidate: int | None) -> Config:
    """The default, or the candidate of that number."""
    if candidate is None:
        return configs[0]
    if not 0 <= candidate < len(configs):
        raise ValueError(f"candidate: is {candidate}; may be 0 to {len(configs) - 1} here")
    return configs[candidate]


def cdiv(count: int, block: int) -> int:
    """Blocks that cover `count`."""
    return -(-count // block)


def power_of_two(count: int, least: int = 1) -> int:
    """The least one that is not below `count`, nor below `least`."""
    return max(least, 1 << (max(count, 1) - 1).bit_length())


# ---- operators -------------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("perfguard_kernels", "FRAGMENT")
_BELOW_AUTOGRAD = torch._C._AutoDispatchBelowAutograd
_any_requires_grad = torch._C._any_requires_grad
_is_transformed = torch._C._are_functorch_transforms_active
_autocasts = torch._C._is_any_autocast_enabled
_KEY = torch._C.DispatchKey
_AUTOCAST = torch._C.DispatchKeySet(_KEY.AutocastCPU)
for _key in (_KEY.AutocastCUDA, _KEY.AutocastXPU):
    _AUTOCAST |= torch._C.DispatchKeySet(_key)


def without_autocast() -> AbstractContextManager[None]:
    """Within, torch's operators take their inputs as they are: a fifth of the host's time of `torch.autocast`, and on
    every device. Nothing for what a compiler traces."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST)


def refuse_tangents(name: str, *arguments: Any) -> None:
    """Below autograd, and by `detach`, a tangent of forward-mode differentiation would be lost in silence."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    tensors = (each for each in arguments if isinstance(each, Tensor))
    if any(forward_ad.unpack_dual(each).tangent is not None for each in tensors):
        raise NotImplementedError(
            f"{name}: got a tangent of forward-mode differentiation (jvp), which it has none for; "
            "take torch's own operators, or reverse mode"
        )


def refuse_transforms(name: str) -> None:
    """Torch asks of an autograd function a form that its own transforms can take apart."""
    if not torch.compiler.is_compiling() and _is_transformed():
        raise RuntimeError(
            f"{name}: is differentiated inside a transform of torch.func (grad, vjp, jacrev, vmap), "
            "which it has no formula for; take torch.autograd.grad, or torch's own operators"
        )


class Operator:
    """A torch operator as `torch.library.custom_op` makes it, with shorter ways for calls that nobody traces.

    `custom_op` puts three layers of Python above its function, for gradients and for checks of its results: on a CPU
    23 us a call that is to be differentiated and 9 us another, where the dispatcher alone takes 2. Here such a call
    is one autograd function, 8 us, and another is none. The layers stay under a compiler, and for those who override
    functions of torch (`__torch_function__`). Derivatives that no formula is there for, tangents and those inside a
    transform of functorch, are refused.

    What the function calls of torch is outside of the caller's autocast, also in a backward pass: its numbers and
    dtypes are its own, as those of a kernel are.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], mutates: Sequence[str] = (), schema: str | None = None
    ) -> None:
        """`schema`: in torch's words, where the function's annotations do not tell it."""
        self._definition = torch.library.custom_op(
            f"perfguard_kernels::{name}", function, mutates_args=mutates, schema=schema
        )

        def run(*arguments: Any) -> Any:
            if not _autocasts():
                return function(*arguments)
            with without_autocast():
                return function(*arguments)

        for device in ("CPU", "CUDA", "XPU"):
            _LIBRARY.impl(name, run, device)
        self.name, self.function = name, function
        self.register_fake = self._definition.register_fake
        self._overload = getattr(torch.ops.perfguard_kernels, name).default
        self._call = self._overload._op
        self._recorded: Callable[..., Any] | None = None

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """As that of `custom_op`. Calls give all arguments of the schema."""
        self._definition.register_autograd(backward, setup_context=setup_context)
        if any("List[Tensor]" in str(each.type) for each in self._overload._schema.arguments):
            return  # an autograd function does not look into lists

        def forward(ctx: Any, *arguments: Any) -> Any:
            with _BELOW_AUTOGRAD():
                output = self._call(*arguments)
                setup_context(ctx, arguments, output)
            return output

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        name = f"GeneratedBackwardFor_{str(self._overload).replace('.', '_')}"  # torch's own name of it
        recorded = type(name, (torch.autograd.Function,), members)
        # What `Function.apply` does besides, 2 us, is functorch's.
        self._recorded = super(torch.autograd.Function, recorded).apply

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._overload(*arguments)
        refuse_tangents(self.name, *arguments)
        if torch.is_grad_enabled() and _any_requires_grad(*arguments):
            refuse_transforms(self.name)
            if self._recorded is None or has_torch_function(arguments):
                return self._overload(*arguments)
            return self._recorded(*arguments)
        with _BELOW_AUTOGRAD():
            return self._call(*arguments)


def saving(*places: int, rest: int) -> Callable[..., None]:
    """A `setup_context` that saves the arguments at `places`, which are tensors, and keeps those from `rest` on, which
    are none, as `ctx.rest`."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*[inputs[place] for place in places])
        ctx.rest = inputs[rest:]

    return save


# In a frame that Dynamo leaves to Python (a graph break in a loop) this call would be compiled as a frame of its own,
# for each operator and shape anew, up to Dynamo's limit. It passes over torch's own layers above an operator, and now
# over this one. What Dynamo traces still goes through.
_DYNAMO = torch._C._dynamo.eval_frame
_DYNAMO.set_code_exec_strategy(
    Operator.__call__.__code__, _DYNAMO._FrameExecStrategy(_DYNAMO._FrameAction.SKIP, _DYNAMO._FrameAction.SKIP)
)


def operator(
    name: str, mutates: Sequence[str] = (), schema: str | None = None
) -> Callable[[Callable[..., Any]], Operator]:
    """Make a function the operator `perfguard_kernels::name`; the rest as in `Operator`."""
    return lambda function: Operator(name, function, mutates, schema)
