"""Gradients of the parameters that a candidate keeps: `perfguard(lambda x: net(x), x, reference=whole)`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from perfguard.check.all_configs import check_given
from perfguard.check.checked import Checked
from perfguard.check.correctness import check
from perfguard.check.numerics.modules import with_kept
from perfguard.model.call import Call

NAMES = [f"gradient of parameter {name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")]


class Forgets(torch.nn.Linear):
    """A layer whose bias gets no gradient."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.nn.functional.linear(input, self.weight, self.bias.detach())


class Renamed(torch.nn.Module):
    """The layers of another module, under other names."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.inner = copy.deepcopy(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def layers(last: type[torch.nn.Linear] = torch.nn.Linear) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.SiLU(), last(16, 8))


def inputs(*, grad: bool = False) -> Tensor:
    return torch.randn(12, 24, generator=torch.Generator().manual_seed(1)).requires_grad_(grad)


def checked(fn: Callable[..., Any], reference: Callable[..., Any], *, grad: bool = False, **options: Any) -> Checked:
    return check(with_kept(Call(fn, (inputs(grad=grad),), reference, **options)))


def gradients(result: Checked) -> list[str]:
    return [each.output for each in result.backward or []]


@pytest.mark.parametrize("grad", [False, True])
def test_gradients_of_the_parameters_that_a_closure_holds_are_compared(grad: bool) -> None:
    net, whole = layers(), layers()
    own = ["gradient of argument 0"] * grad
    for reference in (whole, lambda x: whole(x), functools.partial(whole), Renamed(whole), net):
        right = checked(lambda x: net(x), reference, grad=grad)
        assert (right.wrong, right.notes) == ([], [])
        assert gradients(right) == own + NAMES
    assert net[0].weight.grad is whole[0].weight.grad is None

    forgets = layers(Forgets)
    for reference in (whole, lambda x: whole(x)):
        (problem,) = checked(lambda x: forgets(x), reference, grad=grad).wrong
        assert "no gradient for parameter 2.bias" in problem


def test_parameters_without_a_counterpart_have_no_gradients() -> None:
    net, other = layers(), layers()
    with torch.no_grad():
        other[0].weight.mul_(2)
    weight = torch.randn(8, 24)

    def linear(x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight)

    assert checked(lambda x: linear(x), linear).backward is None
    wide = torch.nn.Sequential(*layers(), torch.nn.Identity(), torch.nn.Linear(8, 8))
    result = checked(lambda x: net(x), lambda x: wide[:3](x))
    assert (result.wrong, result.backward) == ([], None)
    # Nor have those of another order, which only names or values show.
    result = checked(lambda x: net(x), Renamed(other))
    assert result.backward is None


def test_a_kernel_for_inference_may_read_the_weights_of_a_layer() -> None:
    layer = torch.nn.Linear(24, 8)

    def kernel(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.nn.functional.linear(x, layer.weight, layer.bias)

    result = checked(kernel, layer)
    assert (result.wrong, result.backward) == ([], None)
    # An input that requires a gradient asks for one: the path from the result to it is cut.
    assert any("a detached path" in each for each in checked(kernel, layer, grad=True).wrong)


def test_a_module_that_takes_its_own_dtype_alone_keeps_it() -> None:
    class Fixed(torch.nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if self.weight.dtype is torch.float64:
                raise TypeError("float32 alone")
            return super().forward(input.to(self.weight.dtype))

    net = Fixed(24, 8)
    result = checked(lambda x: net(x), lambda x: net(x))
    assert (result.wrong, result.notes) == ([], [])
    assert gradients(result) == ["gradient of parameter weight", "gradient of parameter bias"]


@pytest.mark.parametrize("keeps", [False, True])
def test_in_every_configuration_the_reference_has_its_own_parameters(keeps: bool) -> None:
    class Chosen(torch.nn.Linear):
        def forward(self, input: Tensor, way: int = 0) -> Tensor:
            return super().forward(input) if way < 2 else super().forward(input).detach() + 0 * input.sum()

    net, whole = Chosen(24, 8), torch.nn.Linear(24, 8)
    net.load_state_dict(whole.state_dict())
    fn = (lambda x, way=0: net(x, way)) if keeps else net
    configurations = [{"way": way} for way in range(3)]
    given = check_given(with_kept(Call(fn, (inputs(grad=True),), whole, configurations=configurations)))
    assert given.checked.wrong == []
    right, also_right, wrong = (other.doubts() for other in given.others)
    assert right == also_right == []
    assert any("parameter weight" in doubt.problem for doubt in wrong)


WEIGHT = torch.randn(64, 48, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wrong", [False, True])
def test_tensors_that_a_reference_closes_over_are_widened_with_its_inputs(dtype: torch.dtype, wrong: bool) -> None:
    """A matrix product of float64 and a narrow weight raises."""
    weight = WEIGHT.to(dtype)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(2)).to(dtype).requires_grad_()

    def candidate(x: torch.Tensor) -> torch.Tensor:
        return x @ weight * (1.05 if wrong else 1)

    call = Call(candidate, (x,), reference=lambda x: x @ weight)
    assert bool(check(call).wrong) is wrong
