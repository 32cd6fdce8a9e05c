"""From a call to a launch with little of the host: operators without layers, and launches that are prepared once.

`operator` registers what the dispatcher is to call. A `Launch` is a kernel with the constants of one plan: which
configuration, which dtypes, which static widths. Plans are cached functions of the packages, pure in (architecture,
dtypes, widths, layout), so what any architecture would run can be asked on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernels.jit import JITFunction, driver

Config = TypeVar("Config")
Function = TypeVar("Function", bound=Callable[..., Any])
MAX_CANDIDATES = 4  # configurations of a kernel and architecture


class Launch:
    """A kernel, the constants of its launches, and options of the compiler.

    Triton finds the binary of a launch anew each time: it binds all arguments, the constants among them, and describes
    them as text. Here binaries are kept by what Triton tells apart in the other arguments, and Triton is asked for a
    new kind of them only. Its hooks of a launch are called as ever. Where no CUDA driver launches (AMD, Intel, the
    interpreter, a recorder of launches) every call is Triton's own.
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
        if binary is not None:
            stream = driver.active.get_current_stream(current)
            binary[(programs, 1, 1)](*arguments, *self._values, stream=stream)
            return
        binary = self.kernel[(programs,)](*arguments, **self.constants)
        if binary is not None:
            self._binaries[key] = binary


def _kind(argument: Any, specialised: bool) -> object:
    """What Triton compiles for: a tensor's dtype and alignment to 16 bytes; of a number its width, and, where it is
    specialised, whether it is 1 or divides by 16."""
    if argument is None:
        return None
    kind = type(argument)
    if kind is int:
        narrow = -(2**31) <= argument < 2**31
        if specialised:
            return 1 if argument == 1 else (argument % 16 == 0, narrow)
        return narrow
    if kind is Tensor or isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
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


class Operator:
    """A torch operator as `torch.library.custom_op` makes it, with a shorter way where no gradient is asked for.

    `custom_op` puts three layers of Python above its function, for gradients and for checks of its results: 9 us a call
    on a CPU where the dispatcher alone takes 2. They stay where a result may be differentiated, and under a compiler.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], mutates: Sequence[str] = (), schema: str | None = None
    ) -> None:
        """`schema`: in torch's words, where the function's annotations do not tell it."""
        definition = torch.library.custom_op(
            f"perfguard_kernels::{name}", function, mutates_args=mutates, schema=schema
        )
        for device in ("CPU", "CUDA", "XPU"):
            _LIBRARY.impl(name, function, device)
        self.function = function
        self.register_fake = definition.register_fake
        self.register_autograd = definition.register_autograd
        self._overload = getattr(torch.ops.perfguard_kernels, name).default
        tensors = [number for number, each in enumerate(self._overload._schema.arguments) if "Tensor" in str(each.type)]
        self._differentiable = 1 + max(tensors)  # leading arguments

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._overload(*arguments)
        if torch.is_grad_enabled():
            for argument in arguments[: self._differentiable]:
                if isinstance(argument, Tensor) and argument.requires_grad:
                    return self._overload(*arguments)
        with _BELOW_AUTOGRAD():
            return self._overload(*arguments)


# In a frame that Dynamo leaves to Python (a graph break in a loop) this call would be compiled as a frame of its own,
# for each operator and shape anew, up to Dynamo's limit. It passes over torch's own layers above an operator, and now
# over this one. What Dynamo traces still goes through.
_DYNAMO = torch._C._dynamo.eval_frame
_DYNAMO.set_code_exec_strategy(
    Operator.__call__.__code__, _DYNAMO._FrameExecStrategy(_DYNAMO._FrameAction.SKIP, _DYNAMO._FrameAction.SKIP)
)


def operator(name: str, mutates: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Operator]:
    """Make a function the operator `perfguard_kernels::name`."""
    return lambda function: Operator(name, function, mutates)
