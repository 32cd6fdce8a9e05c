"""torch.distributed: groups by name, implicit redistributions of DTensors, flop of operators, groups without exchanges,
and the recorded collectives."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest import mock

from perfguard._compat.private import Private

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

RESOLVE = Private("torch.distributed.distributed_c10d", "_resolve_process_group", "naming the ranks of an exchange")
DISPATCHER = Private("torch.distributed.tensor._dispatch", "OpDispatcher", "finding redistributions that nobody wrote")
FAKE_STORE = Private("torch.testing._internal.distributed.fake_pg", "FakeStore", "layouts of many ranks in one process")
FAKE_TENSORS = Private("torch._subclasses.fake_tensor", "FakeTensorMode", "layouts whose tensors have no data")
WITHOUT_MODES = Private("torch.utils._python_dispatch", "_disable_current_modes", "making meshes among fake tensors")
FORGET_SHARDINGS = Private(
    "torch.distributed.tensor.debug", "_clear_sharding_prop_cache", "layouts one after another in one process"
)
FLIGHT_RECORDER = Private(
    "torch._C._distributed_c10d", "_dump_fr_trace", "naming the last collective of a rank that hangs"
)

NAMES = (
    Private(
        "torch.distributed.tensor._dispatch",
        "OpDispatcher.redistribute_local_args",
        "finding redistributions that nobody wrote",
    ),
)


def group_of(given: Any) -> ProcessGroup:
    """The process group of an operator's argument, which is a name, a group, or a group boxed for the dispatcher."""
    from torch.distributed import ProcessGroup

    if isinstance(given, str):
        given = RESOLVE.get()(given)
    elif not isinstance(given, ProcessGroup):
        given = RESOLVE.get()(ProcessGroup.unbox(given).group_name)
    group: ProcessGroup = given
    return group


@contextlib.contextmanager
def implicit_redistributions(entering: Callable[[str], None]) -> Iterator[None]:
    """Call `entering` with the operator for which DTensor moves data by itself, and with "" afterwards.

    Without any DTensor in the process this does nothing.
    """
    dispatcher = DISPATCHER.loaded()
    if dispatcher is None:
        yield
        return
    original = dispatcher.redistribute_local_args

    def noted(op_info: Any, wanted: Any, *args: Any, **kwargs: Any) -> Any:
        entering(str(wanted.op.overloadpacket))
        try:
            return original(op_info, wanted, *args, **kwargs)
        finally:
            entering("")

    with mock.patch.object(dispatcher, "redistribute_local_args", staticmethod(noted)):
        yield


def flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """Operator -> function of its arguments and its result (`out_val`) that returns its flop; extends torch's table."""
    import torch
    from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

    def grouped_mm(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
        """2·M·K·N for a (M, K) and b (K, N) or (G, K, N), for any sizes of the groups."""
        return 2 * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])

    def attention(query: torch.Tensor, *others: Any, **_: Any) -> int:
        return int(sdpa_flop_count(query.shape, *_with_heads(query, others[:2])))  # type: ignore[no-untyped-call]

    def attention_backward(grad: torch.Tensor, query: torch.Tensor, *others: Any, **_: Any) -> int:
        shapes = grad.shape, query.shape, *_with_heads(query, others[:2])
        return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]

    aten = torch.ops.aten
    return {
        **flop_registry,
        aten._grouped_mm: grouped_mm,
        **dict.fromkeys(
            [
                aten._scaled_dot_product_flash_attention_for_cpu,
                aten._scaled_dot_product_flash_attention,
                aten._scaled_dot_product_efficient_attention,
                aten._scaled_dot_product_cudnn_attention,
            ],
            attention,
        ),
        **dict.fromkeys(
            [
                aten._scaled_dot_product_flash_attention_backward,
                aten._scaled_dot_product_efficient_attention_backward,
                aten._scaled_dot_product_cudnn_attention_backward,
            ],
            attention_backward,
        ),
    }


def _with_heads(query: torch.Tensor, others: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Shapes of keys and values (batch, heads, positions, width), with the number of heads of the queries: torch 2.11
    refuses to count keys that several heads of the queries share."""
    return [(each.shape[0], query.shape[1], *each.shape[2:]) for each in others]


def fake_store() -> Any:
    """The store for the backend "fake". Importing its module registers the backend."""
    return FAKE_STORE.get()()


def issued_collectives() -> list[dict[str, Any]]:
    """The last collectives that this process has issued, oldest first. torch's flight recorder has them only if
    TORCH_FR_BUFFER_SIZE was set when the process group began."""
    entries: list[dict[str, Any]] = pickle.loads(FLIGHT_RECORDER.get()())["entries"]
    return entries


@contextlib.contextmanager
def tensors_without_data() -> Iterator[None]:
    """Make new tensors with a shape and a storage, but without memory, while inside. Deep copies of them are alike."""
    mode = FAKE_TENSORS.get()()
    mode.__deepcopy__ = lambda memo: mode  # Tensors refer to the mode, and a deep copy would copy it.
    with mode, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copy.deepcopy warns.
        yield


def without_modes() -> AbstractContextManager[None]:
    """Switch all modes off while inside, so that new tensors are ordinary."""
    off: AbstractContextManager[None] = WITHOUT_MODES.get()()
    return off


def forget_shardings() -> None:
    """Clear DTensor's cache of shardings. It treats equal meshes as the same, even if the groups of one have ended."""
    if DISPATCHER.loaded() is not None:
        FORGET_SHARDINGS.get()()
