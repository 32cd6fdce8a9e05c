"""Calls the given inputs in other ways: in another mode or dtype, after other calls, or with their state compared.

The text of a derivation at the place `CALLED` names the way. The reference is called in the same way, and judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard._compat.torch_compiler import uncompiled
from perfguard._compat.torch_internals import has_own_fakes
from perfguard.check.hard_inputs.comparison import Outcome, Usual
from perfguard.check.hard_inputs.derivation import CALLED, INCOMING, TRAINED, TWICE, Derivation, Part, leaves_of
from perfguard.check.hard_inputs.fakes import FAKES, judge_fakes
from perfguard.check.hard_inputs.in_place import (
    changed,
    distinct_floats,
    fill,
    filled,
    ignored,
    on_copies,
    put_back,
    restored,
)
from perfguard.check.hard_inputs.state import State, owner_of
from perfguard.check.hard_inputs.values import is_mask, is_paired, takes_values, with_values
from perfguard.check.hard_inputs.verdict import defines_the_domain, judged
from perfguard.check.numerics.procedure import LeftOut, Procedure, Run, differentiated
from perfguard.check.numerics.trial import Inputs, trained
from perfguard.check.numerics.truth import Reference
from perfguard.model.call import GRADIENTS, Call
from perfguard.model.errors import is_out_of_memory
from perfguard.tensors.autograd_graph import tree_tensors
from perfguard.tensors.seeding import seed_all

# Texts. A failure is "hard input, <text>: <problem>".
AS_GIVEN = "state beside the result"
PARAMETERS, INPUTS = "parameters", "inputs"
CHANGED = {what: f"call again after the {what} changed in place" for what in (PARAMETERS, INPUTS)}
UNTRACKED = [f"{text}, without grad" for text in CHANGED.values()]
REPLACED = "call again after the parameters were replaced through .data"
KEPT = "a result that is kept while a call on other values is made"
DIFFERENT = "different values in parameters and buffers of one value"
STEP = "second step on what the first has written"
_SEQUENCES = (*CHANGED.values(), *UNTRACKED, REPLACED, STEP)
AUTOCAST = "under autocast to bfloat16"
NO_GRAD = "without grad"
INFERENCE = "in inference_mode"
EVAL = "in eval()"
EVAL_NO_GRAD = "in eval() without grad"
_TRACKS_NOTHING = (NO_GRAD, INFERENCE, EVAL_NO_GRAD, *UNTRACKED)
FROZEN = "frozen: "  # parameters, by name
ALL = "all parameters"
IN = "parameters as "  # Another dtype follows.

_MOST_TRAINED = 2  # At most this many inputs that a test does not differentiate by get gradients.
_MOST_FROZEN = 8  # parameters that are frozen one by one
_OTHERS = {
    torch.bfloat16: (torch.float32, torch.float16),
    torch.float16: (torch.float32, torch.bfloat16),
    torch.float32: (torch.bfloat16, torch.float16, torch.float64),
    torch.float64: (torch.float32,),
}


def _parameters(fn: Any) -> dict[str, torch.nn.Parameter]:
    owner = owner_of(fn)
    return dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}


def called_parts(call: Call) -> list[Part]:
    """Other ways to call the given inputs, the most informative of each kind first."""
    if call.ranks.in_step:  # the ranks would have to agree on every further call
        return []
    return [
        *(Part("state", {CALLED: text}) for text in _states(call)),
        *([Part("fakes", {CALLED: FAKES})] if has_own_fakes() else []),
        *(Part("sequences", {CALLED: text}) for text in _sequences(call)),
        *_turns_of(_modes(call), _gradients(call)),
        *(Part("dtypes", steps) for steps in dtype_steps(call)),
        *([Part("equal values", {CALLED: DIFFERENT})] if _of_one_value(call) else []),
    ]


def _states(call: Call) -> list[str]:
    mine, theirs = owner_of(call.fn), owner_of(call.reference)
    return [] if mine is None or theirs is None or mine is theirs else [AS_GIVEN]


def _sequences(call: Call) -> list[str]:
    parameters = _parameters(call.fn)
    if not parameters and not distinct_floats(leaves_of(call)):
        return []
    texts = [CHANGED[PARAMETERS], REPLACED] if parameters else [CHANGED[INPUTS]]
    texts += [f"{texts[0]}, without grad"] if _needs_grad(call) else []
    return [STEP, *texts] if call.mutates else [*texts, KEPT]


def _gradients(call: Call) -> list[Part]:
    """Other gradients than the test's: by inputs that it does not differentiate by, and of one output alone. Formulas
    that agree on the labels 0 and 1 alone, or that read one of two equal values, have other gradients."""
    if not _needs_grad(call):
        return []
    together = call.hard is not None and "values" in call.hard.without
    free = {at: leaf for at, leaf in _floats(call).items() if not (together or is_paired(leaf) or is_mask(leaf))}
    others = [place for place, leaf in free.items() if not leaf.requires_grad]
    by_others = [Part("modes", {place: TRAINED}) for place in others[:_MOST_TRAINED]]
    alone = [Part("modes", {INCOMING: f"of output {at} alone"}) for at in (1, 0)]
    return [part for turn in zip_longest(by_others, alone) for part in turn if part is not None]


def _turns_of(modes: Sequence[str], gradients: Sequence[Part]) -> list[Part]:
    """The first mode, then two of the gradients, which few calls have, then the rest."""
    called = [Part("modes", {CALLED: text}) for text in modes]
    return [*called[:1], *gradients[:2], *called[1:], *gradients[2:]]


def _needs_grad(call: Call) -> bool:
    return bool(Inputs(call).leaf_names)


def _modes(call: Call) -> list[str]:
    """Modes, those of training first for a module, and those of its graph first for a function."""
    fn, reference = call.fn, call.reference
    tensors = [*Inputs(call).tensors, *_parameters(fn).values()]
    # Inputs that are written or clobbered are no longer those that the graph saved.
    intact = not call.mutates and all(at == GRADIENTS for at in call.clobbers)
    graph = [TWICE] if _needs_grad(call) and intact else []
    cast = [AUTOCAST] if any(each.dtype is torch.float32 for each in tensors) else []
    if not isinstance(fn, torch.nn.Module):
        return [*graph, INFERENCE, *cast, NO_GRAD]
    trained = [name for name, _ in _trained(fn)]
    frozen = [f"{FROZEN}{name}" for name in (ALL, *trained[:_MOST_FROZEN])] if trained else []
    evaluated: list[str] = []
    if isinstance(reference, torch.nn.Module) and fn.training:  # whose state decides what eval() means
        mine, theirs = ({name for name, _ in side.named_buffers()} for side in (fn, reference))
        evaluated = [EVAL_NO_GRAD, EVAL] if mine <= theirs else []
    first = [*frozen[:1], *cast, *evaluated[:1], *graph, INFERENCE]
    return [*first, *frozen[1:], NO_GRAD, *evaluated[1:]]


def _trained(fn: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return trained(fn) if isinstance(fn, torch.nn.Module) else []


def _floats(call: Call) -> dict[int, torch.Tensor]:
    """Place -> tensor that may have another dtype."""
    return {
        place: leaf
        for place, leaf in enumerate(leaves_of(call))
        if isinstance(leaf, torch.Tensor) and takes_values(leaf) and leaf.dtype in _OTHERS
    }


def _of_one_value(call: Call) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Parameters of one value and buffers of zeros that both modules have, by name: they hide their code, as a bias of
    zeros does before it is trained. Other buffers may have to agree with each other, such as a scale and its inverse.
    """
    sides = [fn for fn in (call.fn, call.reference) if isinstance(fn, torch.nn.Module)]
    if len(sides) < 2:
        return {}
    parameters = [dict(side.named_parameters()) for side in sides]
    mine, theirs = (own | dict(side.named_buffers()) for own, side in zip(parameters, sides, strict=True))
    both = {name: (mine[name], theirs[name]) for name in mine if name in theirs}
    return {name: pair for name, pair in both.items() if _hide_code(*pair, zero=name not in parameters[0])}


def _hide_code(mine: torch.Tensor, theirs: torch.Tensor, *, zero: bool) -> bool:
    alike = (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
    if not alike or mine.numel() < 2 or not takes_values(mine) or not mine.equal(theirs):
        return False
    return bool((mine == (0 if zero else mine.reshape(-1)[0])).all())


def _buffers_of(sides: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Buffers that `.to(dtype)` converts; none unless the reference is a module that has all of the candidate's."""
    names = [{name for name, _ in side.named_buffers()} for side in sides]
    if len(sides) < 2 or not names[0] <= names[1]:
        return []
    return [each for side in sides for each in side.buffers() if each.dtype in _OTHERS]


def dtype_steps(call: Call) -> list[dict[int, str]]:
    """Steps by place: first all inputs of the first one's dtype in another, then one at a time, or the parameters."""
    floats = _floats(call)
    parameters = _trained(call.fn)
    if not floats or call.mutates:  # Written arguments keep their dtype.
        return []
    main = next(iter(floats.values())).dtype
    alike = {place for place, leaf in floats.items() if leaf.dtype is main}
    with_module = any(each.dtype is main for _, each in parameters)
    found = []
    for other in _OTHERS[main]:
        text = str(other).removeprefix("torch.")
        found.append(dict.fromkeys(alike, f"as {text}") | ({CALLED: IN + text} if with_module else {}))
    text = str(_OTHERS[main][0]).removeprefix("torch.")
    if len(alike) > 1 or with_module:
        found += [{place: f"as {text}"} for place in alike]
    return [*found, {CALLED: IN + text}] if with_module else found


# -- how each text is called -------------------------------------------------------------------------------------------


class _Promotions(torch_utils.DispatchMode):
    """Adds narrow floats: those that the reference's operators meet beside wider ones, so that results are wider by
    promotion, and bfloat16 if the candidate's compute it. Autocast narrows `F.conv1d`, but no sum of products."""

    def __init__(self, promoted: set[torch.dtype], of_reference: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._promoted, self._of_reference = promoted, of_reference

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._of_reference:
            dtypes = {each.dtype for each in tree_tensors(args) if each.dtype in _OTHERS and each.ndim}
            self._promoted |= {dtype for dtype in dtypes if any(dtype.itemsize < other.itemsize for other in dtypes)}
        elif not func.is_view and func.overloadpacket.__name__ != "_to_copy":
            self._promoted |= {torch.bfloat16} & {each.dtype for each in tree_tensors(result)}
        return result


class Called(Procedure):
    """The procedure of a derivation.

    Args:
        given: the call from which others are derived.
        call: the derived call.
    """

    def __init__(self, given: Call, call: Call, derivation: Derivation, state: State) -> None:
        self.text = derivation.text(CALLED)
        self.state_names = [f"{name} after the call" for name in state.names]
        self.is_cast = self.text == AUTOCAST
        self._call, self._state = call, state
        self._undo: list[Callable[[], None]] = []
        self._dtypes: list[torch.dtype] = []  # The given call's, by output.
        self._is_mixed = False
        self._promoted: set[torch.dtype] = set()
        if derivation.parts[0].kind == "dtypes":
            self._is_mixed = all(len(part.steps) == 1 for part in derivation.parts) and len(_floats(given)) > 1
            self.coarse = self._coarsest(given)
        if self.is_cast or self.coarse is not None:
            self._dtypes = [each.dtype for each in Reference(given, Inputs(given)).run([]).outputs]

    def _coarsest(self, given: Call) -> torch.dtype:
        """The coarsest dtype of given and derived inputs: a kernel for bfloat16 may compute in it."""
        tensors = [*_floats(given).values(), *_floats(self._call).values(), *_parameters(given.fn).values()]
        dtypes = {each.dtype for each in tensors}
        if self.text.startswith(IN):
            dtypes.add(getattr(torch, self.text.removeprefix(IN)))
        return max(dtypes & set(_OTHERS), key=lambda dtype: torch.finfo(dtype).eps)

    def may_return(self, dtype: torch.dtype, place: int) -> bool:
        """Inputs of several dtypes have no dtype of results that all formulas agree on. A kernel may be made for one
        dtype of results, and a function, unlike a module, need not know of autocast."""
        if self._is_mixed:
            return dtype.is_floating_point
        if dtype in self._promoted:  # `F.linear` keeps bfloat16 where `x @ w + bias` becomes float32 by the bias alone.
            return True
        known = self.coarse is not None or not isinstance(self._call.fn, torch.nn.Module)
        return known and self._dtypes[place : place + 1] == [dtype]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Both sides in the mode, and their state the same, while inside."""
        sides = [fn for fn in (self._call.fn, self._call.reference) if isinstance(fn, torch.nn.Module)]
        by_side = [[parameter for _, parameter in trained(side)] for side in sides]
        with ExitStack() as stack:
            stack.enter_context(self._state.aligned())
            if self.text in (EVAL, EVAL_NO_GRAD):
                for module in [each for side in sides for each in side.modules()]:
                    stack.enter_context(changed(module, "training", False))
            elif self.text.startswith(FROZEN):
                asked = self.text.removeprefix(FROZEN)
                names = [name for name, _ in _trained(self._call.fn)]
                for name, *parameters in zip(names, *by_side, strict=False):
                    for parameter in parameters if asked in (name, ALL) else ():
                        stack.enter_context(changed(parameter, "requires_grad", False))
            elif self.text.startswith(IN):
                dtype = getattr(torch, self.text.removeprefix(IN))
                cast = [each for side in by_side for each in side] + _buffers_of(sides)
                for tensor in {id(each): each for each in cast}.values():
                    stack.enter_context(changed(tensor, "data", tensor.data.to(dtype)))
            elif self.text == DIFFERENT:
                written = [name.removeprefix("buffer ") for name in self._state.names]  # A cache has unused rows.
                pairs = [pair for name, pair in _of_one_value(self._call).items() if name not in written]
                stack.enter_context(restored([each for pair in pairs for each in pair]))
                with torch.no_grad():
                    for mine, theirs in pairs:
                        theirs.copy_(mine.copy_(with_values(mine, "different")))
            yield

    def call(self, run: Run) -> Any:
        takes_part = run.fn is self._call.fn or self.text == STEP or bool(self.state_names)
        if takes_part and self.text in _SEQUENCES:
            self._earlier(run)
        elif self.text == INFERENCE:  # Tensors kept by a call in inference_mode are of no use to a later one.
            ignored(run, grad=False)
        seed_all(run.seed)
        notes = self._dtypes and not run.wide and (run.fn is not self._call.fn or self.is_cast)
        with self._mode(run), _Promotions(self._promoted, run.fn is not self._call.fn) if notes else nullcontext():
            results = run()
            if takes_part and self.text == KEPT:
                if self._state.is_among(tree_tensors(results)):
                    raise LeftOut("a result is state, which a later call changes")
                on_copies(run)
            return results

    def _mode(self, run: Run) -> AbstractContextManager[Any]:
        if self.text == AUTOCAST:
            return torch.autocast(Inputs(self._call).device.type, torch.bfloat16)
        if self.text == INFERENCE and run.fn is self._call.fn:  # an oracle cannot be made of operators in that mode
            return torch.inference_mode()
        return torch.no_grad() if self.text in _TRACKS_NOTHING else nullcontext()

    def _earlier(self, run: Run) -> None:
        """Make the calls before the judged one: on other values in the same memory, or on the same values in other
        memory."""
        parameters = [*_parameters(run.fn).values()]
        inputs = distinct_floats(torch_utils.tree_leaves((run.args, run.kwargs)))
        if self.text == STEP:
            written = {id(leaf) for at in self._call.mutates for leaf in torch_utils.tree_leaves(run.args[at])}
            with filled([each for each in inputs if id(each) not in written]):
                ignored(run, grad=False, writes=True)
            return
        for parameter in parameters:
            self._undo.append(partial(put_back, parameter, parameter.data))
        if self.text == REPLACED:
            kept = [(each, each.data, each.detach().clone()) for each in parameters]
            fill(parameters)
            try:
                ignored(run, grad=bool(run.upstream))
            finally:
                for parameter, data, values in kept:
                    parameter.data = values.clone()
                    data.copy_(values)  # unlike the parameter, this alias does not count as a change of it
            return
        for parameter in parameters:  # memory that no cache knows
            parameter.data = parameter.data.clone()
        with filled([*parameters, *inputs]):
            ignored(run, grad=False)
            if run.upstream:
                ignored(run, grad=True)
        if run.upstream:
            ignored(run, grad=False)

    def gradients(self, outputs: Sequence[torch.Tensor], run: Run) -> list[torch.Tensor | None]:
        if self.text == TWICE and run.upstream:
            again = [None if each is None else each.clone() for each in run.upstream]
            differentiated(outputs, run, retain=True)
            return super().gradients(outputs, replace(run, upstream=again))
        try:
            return super().gradients(outputs, run)
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            if self.text != AUTOCAST or is_out_of_memory(error):
                raise
            # A backward pass runs outside of autocast, and few that are written by hand take its dtypes.
            raise LeftOut("a backward pass raises after autocast") from error

    def state(self, fn: Callable[..., Any]) -> list[torch.Tensor]:
        return self._state.read(fn)

    def restore(self, fn: Callable[..., Any]) -> None:
        while self._undo:
            self._undo.pop()()
        self._state.restore(fn)


def judged_called(
    given: Call, call: Call, derivation: Derivation, usual: Callable[[], Usual], state: Callable[[], State]
) -> Outcome:
    """The judgement of `call`, which comes from `derivation`, called as that asks.

    Compiled functions run eagerly: each mode and dtype would be a further variant, of which torch compiles few, and it
    no longer compiles a frame that has run under a dispatch mode.
    """
    try:
        with uncompiled():
            if derivation.text(CALLED) == FAKES:
                return judge_fakes(call)
            with defines_the_domain():
                procedure = Called(given, call, derivation, state())
            if procedure.text == AS_GIVEN and not procedure.state_names:
                raise LeftOut("no state that both sides have is changed")
            with procedure.applied():
                return judged(replace(call, procedure=procedure), derivation, usual)
    except LeftOut as left:
        return Outcome(left_out=str(left))
