"""A guarded call: candidate, inputs, reference, and how closely results must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from perfguard.model.errors import UsageError, shown
from perfguard.model.mesh import mesh_call

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from perfguard.model.records import Case

GRADIENTS: Literal["gradients"] = "gradients"
Outputs = Any  # A tensor, or any nesting of tuples, lists and dicts of tensors.
Layers = Mapping[int, Callable[[], Callable[..., Outputs]]]
Choices = Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]
Configurations = Choices | Callable[[], Choices]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The least work that one call has to do, from which its throughput follows.

    Attributes:
        bytes: bytes that must move through device memory: every input is read once, every output is written once.
        flop: floating-point operations (a multiply-add counts as 2).
        backward_bytes, backward_flop: the same for the backward pass alone.
    """

    bytes: int | None = None
    flop: int | None = None
    backward_bytes: int | None = None
    backward_flop: int | None = None

    def __post_init__(self) -> None:
        for name in ("bytes", "flop", "backward_bytes", "backward_flop"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise UsageError(f"Work({name}={shown(value)}): give a count >= 0 as an int, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Overrides of the numerics rule (docs/numerics.md); each needs a `reason`.

    The rule, for an output with oracle o, eager error e_e and candidate error e_c:
    RMSE(e_c) <= k·RMSE(e_e) + phi·u·RMS(o), globally and for the worst group.

    Attributes:
        k: allowed multiple of eager's own error; default by dtype (2 for bf16/fp16, 3 for gradients and fp8,
            4 for float32).
        phi: allowed share of one rounding of the output dtype; default 0.25.
        group_dim: dimension along which rows are the groups; default: all but the last dimension.
        fp8_step_fraction: share of fp8 codes that may be one step off without a tie; default 0.
        reason: why the default does not fit; required.
    """

    k: float | None = None
    phi: float | None = None
    group_dim: int | None = None
    fp8_step_fraction: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise UsageError("Tolerance: say why the default does not fit: Tolerance(…, reason='…')")
        for name in ("k", "phi"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise UsageError(f"Tolerance({name}={shown(value)}): give a number above 0")
        share = self.fp8_step_fraction
        if not (isinstance(share, int | float) and 0 <= share <= 1):
            raise UsageError(f"Tolerance(fp8_step_fraction={shown(share)}): give a number in [0, 1]")
        if self.group_dim is not None and not isinstance(self.group_dim, int):
            raise UsageError(f"Tolerance(group_dim={shown(self.group_dim)}): give the number of a dimension")


_OTHER_VALUES = (
    *("values", "non-finite", "layouts", "sizes", "integers", "gradients", "masked lanes", "program order"),
    *("equal sizes", "thresholds", "scalars", "runs", "magnitudes", "equal values", "tuning", "unmarked integers"),
    "unmentioned",
)
_OTHER_CALLS = ("state", "sequences", "modes", "dtypes", "fakes")
HARD_KINDS = _OTHER_VALUES + _OTHER_CALLS
CONFIGURATIONS = "configurations"  # Configurations alternate with these kinds, on the given inputs.


def _is_hard_kind(value: object) -> bool:
    return isinstance(value, str) and value in HARD_KINDS


@dataclass(frozen=True, kw_only=True)
class Hard:
    """Which kinds of derived inputs a call leaves out (docs/hard-inputs.md), and why.

    Attributes:
        without: kinds among "values", "non-finite" (NaN and infinities), "layouts", "sizes", "integers" (marked ones),
            "gradients" (incoming ones), "equal sizes" (that differ), "thresholds" (of the code), "scalars" (numbers and
            options), "runs" (of ids that stand for none), "magnitudes" (near epsilons), "equal values" (that differ),
            "tuning" (options of the candidate alone), "unmarked integers", "unmentioned" (judged by the base alone); in
            Triton's interpreter "masked lanes" and "program order"; and the given inputs called otherwise: "state",
            "sequences", "modes", "dtypes", "fakes".
        reason: why the call need not be right for them; required.
    """

    without: Sequence[str] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        kinds = self.without
        if not isinstance(kinds, Sequence) or isinstance(kinds, str) or not all(map(_is_hard_kind, kinds)):
            raise UsageError(f"Hard(without={shown(kinds)}): give a list of {', '.join(HARD_KINDS)}")
        if kinds and not (isinstance(self.reason, str) and self.reason.strip()):
            raise UsageError("Hard: say why the call need not be right there: Hard(without=[…], reason='…')")


class Ranks:
    """The ranks that make a test's calls. Here they are one, this process alone; perfguard/ranks has those of a group.

    Attributes:
        alone: whether this process is in no process group, so that steps, operators and times are its own.
        in_step: whether all ranks make the same calls, and agree on each further one.
        has_data: whether tensors have values and memory.
        rank, ranks: this process's number, and how many there are.
        dimensions: sizes by dimension of the test's latest mesh; empty without a mark.
        test: names the test in messages.
    """

    alone, in_step, has_data = True, False, True
    rank, ranks = 0, 1
    dimensions: Mapping[str, int] = MappingProxyType({})
    test = "this test"

    def given(self, call: Call) -> Call:
        """The call as these ranks make it."""
        return replace(call, ranks=self, mesh=self.dimensions)

    def guard(self, call: Call, case: Case) -> bool:
        """Guard the call in place of this process's run; False if the run has to."""
        return False

    def check(self, call: Call) -> Any:
        """The check (`check.checked.Checked`) of a call that needs another one than a call of one process; or None."""
        return None

    def exchange(self, purpose: str, data: object = None) -> list[Any]:
        """The data (any JSON) of all ranks in their order. Every rank calls it with the same purpose."""
        return [data]

    def mesh(self, dimensions: Mapping[str, int]) -> DeviceMesh:
        """The ranks as a mesh.

        Raises:
            UsageError: the product of the dimensions is not the number of ranks in the test's mark.
        """
        one = f"{self.test} runs on one rank; mark it @pytest.mark.perfguard(ranks=…)"
        raise UsageError(f"{mesh_call(dimensions)}: {one}")

    def unsupported(self, reason: str) -> None:
        """Note that this hardware cannot run the test."""


ALONE = Ranks()


@dataclass(frozen=True)
class OtherCall:
    """A call on derived inputs, whose launches are traced instead of run.

    Attributes:
        name: the change, equal in every process and commit: `transposed argument 0`, `argument 0 dim 1`.
        kind: of the change, as in `Hard(without=…)`: layouts, sizes, gradients (frozen inputs), dtypes or modes.
        size: the new size of a dimension; 0 for other kinds, and for sizes of 0 and 1.
        refusals: what the call is counted as if torch's operators refuse it; '' if it is not counted.
        instead: whether it is traced only if no earlier call of its name could be.
    """

    name: str
    kind: Literal["layouts", "sizes", "gradients", "dtypes", "modes"]
    make: Callable[[], Call]
    size: int = 0
    refusals: str = ""
    instead: bool = False


@dataclass(frozen=True, eq=False)
class Call:
    """One guarded call. Calls are equal only if identical: objects of the user are never compared.

    Attributes:
        fn: the candidate.
        args, kwargs: its inputs; tensors may be anywhere in nested tuples, lists and dicts.
        reference: eager truth, called with the same inputs, and again with them in the oracle's dtype.
        mutates: positions in `args` that the candidate writes; they are compared like outputs.
        clobbers: positions in `args` whose memory the candidate may overwrite with anything, in the forward or the
            backward pass. `GRADIENTS` is the memory of the incoming gradients.
        cold_start: whether separate processes measure the time to the first result; or functions that build the
            candidate, by number of layers.
        seed: seed of random numbers drawn inside the calls; upstream gradients use the next seed, inputs another one.
        walk: further inputs with which a compiled candidate is called, each a tuple like `args` or a function that
            prepares one.
        configurations: keyword arguments that each choose another configuration, as a list, by name of the table entry
            that they come from, or as a function that returns either.
        every: whether all configurations are checked, regardless of the time that it takes.
        groups: inclusive running ends of the groups of rows, as a tensor or numbers. Failures name the group.
        rival: the function that the candidate has to beat, called with the same inputs; None: no rival.
        hard: kinds of derived inputs to leave out; None: no derived inputs at all.
        settings: compiler settings when the test began (`measure/compiled.py`); None if they were not read.
        mesh: sizes by dimension of a case of several ranks, in row-major order: {"efsdp": 2, "ep": 2}; empty for one.
        ranks: the ranks that make the call.
        procedure: makes each run of candidate and reference (check/numerics/procedure.py); None: a plain call.
        others: derived calls whose launches, copies and reads of the host are counted.
        kept: the module that a candidate keeps and whose parameters have gradients, unless the candidate is a module.
    """

    fn: Callable[..., Outputs]
    args: tuple[Any, ...]
    reference: Callable[..., Outputs]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tolerance: Tolerance | None = None
    work: Work | None = None
    mutates: tuple[int, ...] = ()
    clobbers: tuple[int | Literal["gradients"], ...] = ()
    timed: bool = True
    cache: Literal["cold", "warm"] = "cold"
    seed: int = 0
    cold_start: bool | Layers = False
    walk: tuple[tuple[Any, ...] | Callable[[], tuple[Any, ...]], ...] = ()
    configurations: Configurations = ()
    every: bool = False
    settings: Mapping[str, str] | None = None
    groups: Any = None
    rival: Callable[..., Outputs] | None = None
    hard: Hard | None = Hard()
    mesh: Mapping[str, int] = field(default_factory=dict)
    ranks: Ranks = ALONE
    procedure: Any = None
    others: Sequence[OtherCall] = ()
    kept: Any = None

    def run(self) -> Outputs:
        """Call the candidate once."""
        return self.fn(*self.args, **self.kwargs)

    def on_any_rank(self, flag: bool) -> bool:
        """Whether `flag` is set on any rank that makes the call. Decisions on further calls need this: a rank that
        makes more calls than the others waits for them forever."""
        return any(self.ranks.exchange("a decision", flag))

    @property
    def choices(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(name, configuration) for the device of the inputs. Names are empty if the test gave none.

        Raises:
            UsageError: a configuration is no set of keyword arguments.
        """
        given = self.configurations() if callable(self.configurations) else self.configurations
        if not isinstance(given, Mapping | Sequence):
            raise _no_configurations(given)
        choices = [*given.items()] if isinstance(given, Mapping) else [("", chosen) for chosen in given]
        for name, chosen in choices:
            if not isinstance(chosen, Mapping) or not all(isinstance(each, str) for each in (name, *chosen)):
                raise _no_configurations(chosen if isinstance(name, str) else name)
        return choices


def _no_configurations(given: object) -> UsageError:
    return UsageError(
        f"perfguard(configurations=…): {shown(given)} gives no keyword arguments; "
        "write [{'candidate': 0}, …], or by name {'width <= 512': {'candidate': 0}, …}"
    )
