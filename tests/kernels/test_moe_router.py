"""The router: scores, choice, weights, ties, limited groups, balance; and the gradient of the gate."""

from __future__ import annotations

import pytest
import torch

from kernels.moe import MoEConfig, Router, reference
from kernels.moe.router import balanced_ids, choose, gate
from tests.kernels.moe_cases import CONFIGS, config, tokens


def router(name: str = "softmax", dtype: torch.dtype = torch.float32, **changes: object) -> Router:
    built = Router(config(name, **changes), dtype=dtype)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_()
    return built


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_agrees_with_the_reference(name: str, dtype: torch.dtype) -> None:
    gate, x, bias = router(name, dtype), tokens(50, dtype), torch.randn(config(name).experts)
    got, expected = gate(x, bias), reference.route(gate, x, bias)
    wide = torch.promote_types(dtype, torch.float32)
    assert (got.weights.dtype, got.ids.dtype, got.scores.dtype) == (wide, torch.int64, wide)
    assert torch.equal(got.ids, expected.ids)
    torch.testing.assert_close(got.weights, expected.weights)
    torch.testing.assert_close(got.scores, expected.scores)
    grads = [torch.randn_like(got.weights), torch.randn_like(got.scores)]
    ours = torch.autograd.grad([got.weights, got.scores], [x, *gate.parameters()], grads)
    theirs = torch.autograd.grad([expected.weights, expected.scores], [x, *gate.parameters()], grads)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    gate, x = router(top_k=2), tokens(40, torch.float32)
    bias = torch.zeros(8)
    bias[5] = 10.0
    plain, biased = gate(x), gate(x, bias)
    assert (biased.ids == 5).any(dim=1).all()
    assert not (plain.ids == 5).any(dim=1).all()  # else the bias had nothing to do
    assert torch.equal(biased.weights, biased.scores.gather(1, biased.ids))
    assert torch.equal(biased.scores, plain.scores)


def test_normalised_weights_sum_to_the_scale_also_where_all_scores_are_zero() -> None:
    built = router("sigmoid")
    assert torch.allclose(built(tokens(30, torch.float32)).weights.sum(-1), torch.tensor(2.5))
    with torch.no_grad():
        built.weight.fill_(-1e4)  # every sigmoid underflows to 0
    weights = built(torch.ones(4, 32)).weights
    assert torch.equal(weights, torch.zeros(4, 3))


def test_weights_are_not_normalised_unless_asked() -> None:
    routing = router("softmax")(tokens(30, torch.float32))
    assert (routing.weights.sum(-1) < 0.999).any()


def test_equal_scores_go_to_the_lower_expert() -> None:
    routing = router("softmax")(torch.zeros(7, 32))  # a row of padding: all logits 0
    assert routing.ids.tolist() == [[0, 1, 2]] * 7
    scores = torch.tensor([[0.1, 0.3, 0.2, 0.3, 0.3, 0.2, 0.0, 0.3]])
    assert choose(scores, None, config(top_k=3)).tolist() == [[1, 3, 4]]
    assert choose(scores, None, config(top_k=6)).tolist() == [[1, 3, 4, 7, 2, 5]]


def test_a_group_scores_the_sum_of_its_two_best() -> None:
    limited = config(top_k=2, groups=4, kept_groups=1)
    #                        group 0     group 1     group 2     group 3
    scores = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.6, 0.2, 0.1, 0.1]])
    assert choose(scores, None, limited).tolist() == [[2, 3]]  # not where the best expert is
    two = config(top_k=3, groups=4, kept_groups=2)
    assert choose(scores, None, two).tolist() == [[0, 2, 3]]
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    assert choose(scores, bias, limited).tolist() == [[6, 7]]  # groups are compared with the bias


def test_a_limited_choice_never_leaves_its_groups() -> None:
    limited = config("groups", top_k=4)
    ids = choose(torch.randn(200, 8), None, limited)  # scores below 0 too: a mask of 0 would let others in
    assert all(len({expert // 2 for expert in row}) == 2 for row in ids.tolist())


def test_balanced_ids_go_round() -> None:
    ids = balanced_ids(16, config(), torch.device("cpu"))
    assert ids[:3].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 0]]
    assert torch.equal(ids.flatten().bincount(minlength=8), torch.full((8,), 6))
    routing = router(balanced=True)(tokens(16, torch.float32))
    assert torch.equal(routing.ids, ids)
    assert torch.equal(routing.weights, routing.scores.gather(1, ids))


def test_ids_are_distinct_and_own_their_memory() -> None:
    ids = router()(tokens(64, torch.float32)).ids
    assert all(len(set(row)) == 3 for row in ids.tolist())
    assert ids.untyped_storage().nbytes() == 64 * 3 * 8  # no view of (tokens, experts)


def test_the_gate_stays_in_float32_under_autocast() -> None:
    built, x = router(), tokens(50)
    plain = built(x)
    grad = torch.randn_like(plain.scores)
    gradients = torch.autograd.grad(plain.scores, [x, built.weight], grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = built(x)
        cast_gradients = torch.autograd.grad(cast.scores, [x, built.weight], grad)
    assert cast.scores.dtype == torch.float32
    for one, other in zip((*plain, *gradients), (*cast, *cast_gradients), strict=True):
        assert torch.equal(one, other)


def test_the_gate_has_the_right_gradients() -> None:
    x, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((5, 4), (3, 4), (3,)))
    assert torch.autograd.gradcheck(gate, (x, weight, bias))
    assert torch.autograd.gradcheck(gate, (x, weight, None))


def test_no_tokens() -> None:
    for name in CONFIGS:
        routing = router(name)(torch.empty(0, 32))
        assert routing.ids.shape == routing.weights.shape == (0, config(name).top_k)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 9}, "top_k: is 9; may be 1 to 8"),
        ({"top_k": 0}, "top_k: is 0"),
        ({"groups": 3}, "groups: is 3 for 8 experts"),
        ({"groups": 8}, "groups: is 8 for 8 experts"),  # one expert a group has no two best
        ({"groups": 4, "kept_groups": 5}, "kept_groups: is 5"),
        ({"groups": 4, "kept_groups": 1}, "top_k: is 3; may be 2 at most"),  # -inf would have to be chosen
        ({"score": "relu"}, "score: is 'relu'; may be one of softmax, sigmoid"),
        ({"shared": -1}, "shared: is -1"),
        ({"hidden": 0}, "hidden: is 0"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MoEConfig(**{"dim": 32, "hidden": 48, "experts": 8, "top_k": 3, **changes})  # type: ignore[arg-type]
