"""The MoE layer against the dense oracle, and what it promises besides: zero gradients of idle experts, equal bits,
counters, autocast, checkpointing, compilation, errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from kernels import grouped
from kernels.moe import MoE, SwiGLUExperts, reference, update_before_step, update_expert_bias
from kernels.moe.matmul import MATMULS
from kernels.moe.shapes import MODELS
from kernels.parallel.experts import shard_experts
from tests.kernels.guards import no_host_reads
from tests.kernels.moe_cases import CONFIGS, as_double, build, config, dense, gradients, rmse, tokens
from tests.kernels.paths import KernelPath

TOKENS = 40
WAYS: dict[str, dict[str, Any]] = {"recomputing": {}, "plain": {"recompute": False}, "loop": {"loop": True}}


# ---- the oracle ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loop_in_float64_is_the_dense_sum(name: str) -> None:
    layer = as_double(build(config(name), torch.float64))
    x = tokens(TOKENS, torch.float64)
    out, ids = layer(x), layer.router(x, layer.expert_bias).ids
    expected = dense(layer, x, ids)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    ours, theirs = gradients(layer, out, x, grad), gradients(layer, expected, x, grad)
    for parameter in ours:
        torch.testing.assert_close(ours[parameter], theirs[parameter], msg=lambda text, p=parameter: f"{p}: {text}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONFIGS)
def test_bf16_errs_at_most_twice_as_much_as_eager(name: str, way: str) -> None:
    """Output and each gradient, against the dense sum in float64 on the same rounded inputs."""
    layer = build(config(name), **WAYS[way])
    x = tokens(TOKENS)
    double, wide = as_double(layer), x.detach().double().requires_grad_()
    expected = dense(double, wide, layer.router(x, layer.expert_bias).ids)
    got, eager = layer(x), reference.moe(layer, x)
    assert got.dtype == torch.bfloat16
    grad = torch.randn(got.shape).bfloat16()
    pairs = {"output": (got, eager, expected)}
    results = (
        gradients(layer, got, x, grad),
        gradients(layer, eager, x, grad),
        gradients(double, expected, wide, grad),
    )
    for parameter in results[0]:
        pairs[parameter] = tuple(result[parameter] for result in results)  # type: ignore[assignment]
    for what, (ours, theirs, truth) in pairs.items():
        assert ours.dtype == theirs.dtype
        floor = 2**-10 * float(truth.detach().double().square().mean().sqrt())  # a quarter of one rounding
        assert rmse(ours, truth) <= 2 * rmse(theirs, truth) + floor, what


@pytest.mark.parametrize("name", ["softmax-norm", "weight-before-top2", "shared"])
def test_recomputing_changes_no_bit_of_the_output(name: str) -> None:
    layer, x = build(config(name)), tokens(TOKENS)
    first = layer(x)
    layer.recompute = False
    assert torch.equal(first, layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("way", ["recomputing", "plain"])
def test_wide_inputs_come_back_wide_and_are_counted_in_bf16(dtype: torch.dtype, way: str) -> None:
    """float32 weights, as masters, or float64: the experts' matmuls still take bf16."""
    seen = []
    layer = build(config("shared"), torch.float32, **WAYS[way])
    bf16 = MATMULS["bf16"]

    def spy(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        seen.append((a.dtype, b.dtype))
        return bf16(a, b, offs)

    layer.experts.grouped_mm = spy  # type: ignore[method-assign]
    x = tokens(TOKENS, dtype)
    out = layer(x)
    assert out.dtype == dtype
    assert seen == [(torch.bfloat16, torch.bfloat16)] * 3
    found = gradients(layer, out, x, torch.randn_like(out))
    assert found.pop("x").dtype == dtype
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}


# ---- gradients of what has no tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["softmax", "gpt-oss", "weight-before-top2"])
def test_idle_experts_get_exactly_zero_and_busy_ones_do_not(name: str, way: str) -> None:
    layer, x = build(config(name), **WAYS[way]), tokens(TOKENS)
    layer.expert_bias.copy_(torch.tensor([-1e3, 0, 0, -1e3, 0, 0, 0, -1e3]))  # first, middle, last stay empty
    idle = torch.tensor([True, False, False, True, False, False, False, True])
    out = layer(x)
    found = gradients(layer, out, x, torch.randn_like(out))
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in found.values())
    for parameter, gradient in found.items():
        if parameter.startswith("experts."):
            any_of_expert = gradient.flatten(1).any(dim=1)
            assert torch.equal(any_of_expert, ~idle), parameter


def test_the_gate_learns_through_the_weights_alone() -> None:
    """A sigmoid without normalisation: the gate's row of an expert that nobody chose has gradient zero."""
    layer, x = build(config(score="sigmoid")), tokens(TOKENS)
    layer.expert_bias[6] = -1e3
    out = layer(x)
    gate = gradients(layer, out, x, torch.randn_like(out))["router.weight"]
    assert not gate[6].any()
    assert gate[:6].any(dim=1).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_few_tokens(name: str, count: int, way: str) -> None:
    layer, x = build(config(name), **WAYS[way]), tokens(count)
    out = layer(x)
    assert out.shape == (count, 32)
    found = gradients(layer, out, x, torch.randn_like(out))
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    assert count == 1 or not any(bool(gradient.any()) for gradient in found.values())


# ---- the same bits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax-norm", "gpt-oss", "weight-before-top2"])
def test_the_same_bits_each_time_and_under_autocast(name: str) -> None:
    layer, x = build(config(name), torch.float32), tokens(TOKENS, torch.float32)
    grad = torch.randn(TOKENS, 32)

    def run() -> list[Tensor]:
        out = layer(x)
        return [out, *gradients(layer, out, x, grad).values()]

    first, again = run(), run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run()
    assert cast[0].dtype == torch.float32
    for one, *others in zip(first, again, cast, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_choice_does_not_depend_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    layer, x = build(config("groups")), tokens(TOKENS)
    layer.router.register_forward_hook(lambda _, __, routing: chosen.append(routing.ids))
    for way in ({"loop": True}, {"loop": False, "recompute": False}, {"recompute": True}):
        for attribute, value in way.items():
            setattr(layer, attribute, value)
        layer(x)
    assert all(torch.equal(chosen[0], other) for other in chosen[1:])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONFIGS)
def test_frozen_inputs_and_weights_take_no_gradient_of_the_others(name: str, way: str) -> None:
    """As below the first layer, and with experts or a router that are not trained."""
    layer, x, grad = build(config(name), **WAYS[way]), tokens(TOKENS), torch.randn(TOKENS, 32).bfloat16()
    whole = gradients(layer, layer(x), x, grad)
    leaves = {"x": x, **dict(layer.named_parameters())}
    for frozen in ("x", "router", "experts"):
        for each, tensor in leaves.items():
            tensor.requires_grad_(not each.startswith(frozen))
        needed = {each: tensor for each, tensor in leaves.items() if tensor.requires_grad}
        found = torch.autograd.grad(layer(x), [*needed.values()], grad)
        for each, gradient in zip(needed, found, strict=True):
            assert torch.equal(gradient, whole[each]), f"{each} without {frozen}"


def test_strided_input_and_gradient() -> None:
    layer = build(config("shared"))
    x = torch.randn(32, 2 * TOKENS).bfloat16().t()[::2].requires_grad_()
    straight = x.detach().contiguous().requires_grad_()
    grad = torch.randn(32, TOKENS).bfloat16().t()
    ours, theirs = gradients(layer, layer(x), x, grad), gradients(layer, layer(straight), straight, grad.contiguous())
    for parameter in ours:
        torch.testing.assert_close(ours[parameter], theirs[parameter])
    flat = torch.ones((), dtype=torch.bfloat16).expand(TOKENS, 32)  # the gradient of .sum(), all strides 0
    for one, other in zip(
        gradients(layer, layer(x), x, flat).values(), gradients(layer, layer(x), x, flat.contiguous()).values(),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(one, other)


# ---- balance -------------------------------------------------------------------------------------------------------


def test_counters_count_in_training_only() -> None:
    layer, x = build(config()), tokens(TOKENS)
    layer.eval()
    layer(x)
    assert not layer.tokens_per_expert.any()
    layer.train()
    layer(x)
    once = layer.tokens_per_expert.clone()
    assert once.sum() == TOKENS * 3
    assert torch.equal(once, layer.router(x, layer.expert_bias).ids.flatten().bincount(minlength=8).float())
    layer(x)
    assert torch.equal(layer.tokens_per_expert, 2 * once)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_checkpointing_counts_once_and_changes_nothing(way: str, reentrant: bool) -> None:
    layer, x = build(config("shared"), **WAYS[way]), tokens(TOKENS)
    grad = torch.randn(TOKENS, 32).bfloat16()

    def step(run: Any) -> list[Tensor]:
        layer.zero_grad()
        x.grad = None
        run().backward(grad)
        return [x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]  # type: ignore[list-item,union-attr]

    plain = step(lambda: layer(x))
    once = layer.tokens_per_expert.clone()
    layer.tokens_per_expert.zero_()
    recomputed = step(lambda: checkpoint(layer, x, use_reentrant=reentrant))
    assert once.any()
    assert torch.equal(layer.tokens_per_expert, once)
    assert all(torch.equal(a, b) for a, b in zip(plain, recomputed, strict=True))


def test_the_bias_moves_towards_idle_experts() -> None:
    layer = MoE(config(experts=4, top_k=1))
    layer.tokens_per_expert.copy_(torch.tensor([10.0, 0.0, 6.0, 8.0]))  # mean 6: one above, one at, ...
    update_expert_bias(layer)
    delta = torch.tensor([-1e-3, 1e-3, 0.0, -1e-3])
    torch.testing.assert_close(layer.expert_bias, delta - delta.mean())
    assert not layer.tokens_per_expert.any()
    layer.tokens_per_expert.copy_(torch.tensor([0.0, 4.0, 0.0, 0.0]))
    before = layer.expert_bias.clone()
    update_expert_bias(layer, 0.5)
    delta = torch.tensor([0.5, -0.5, 0.5, 0.5])
    torch.testing.assert_close(layer.expert_bias, before + delta - delta.mean())


def test_the_bias_is_updated_before_the_optimiser_step_and_balances() -> None:
    model = torch.nn.Sequential(build(config(score="sigmoid"), torch.float32))
    layer, x = model[0], tokens(96, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    handle = update_before_step(optimizer, model, 0.02)

    def step() -> float:
        layer(x).sum().backward()
        spread = float(layer.tokens_per_expert.max() - layer.tokens_per_expert.min())
        optimizer.step()
        return spread

    spreads = [step() for _ in range(25)]
    assert spreads[-1] <= spreads[0] / 2
    assert not layer.tokens_per_expert.any()
    handle.remove()
    step()
    assert layer.tokens_per_expert.any()


def test_buffers() -> None:
    layer = build(config())
    assert "expert_bias" in layer.state_dict()
    assert "tokens_per_expert" not in layer.state_dict()
    assert {buffer.dtype for buffer in layer.buffers()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_buffers_count_in_float32_at_least(dtype: torch.dtype) -> None:
    """Whole numbers above 256 are not in bf16, and steps of 1e-3 beside 1 neither; what they hold survives a cast."""
    layer = MoE(config())
    layer.tokens_per_expert.fill_(257.0)
    layer.expert_bias.fill_(1.001)
    layer = torch.nn.Sequential(layer).to(dtype)[0]
    assert {each.dtype for each in layer.parameters()} == {dtype}
    wide = torch.promote_types(dtype, torch.float32)
    for buffer, value in ((layer.tokens_per_expert, 257.0), (layer.expert_bias, torch.tensor(1.001).item())):
        assert (buffer.dtype, set(buffer.tolist())) == (wide, {value})
    placed = layer.to("meta").to_empty(device="cpu")
    assert {(each.dtype, each.device.type) for each in placed.buffers()} == {(wide, "cpu")}


# ---- matmuls and the host ------------------------------------------------------------------------------------------


def test_every_matmul_of_the_experts_goes_through_one_method() -> None:
    calls = []

    class Counting(SwiGLUExperts):
        def grouped_mm(self, a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
            calls.append((tuple(a.shape), tuple(b.shape)))
            return super().grouped_mm(a, b, offs)

    layer, x = build(config()), tokens(TOKENS)
    expected = layer(x)
    counting = Counting(layer.config, dtype=torch.bfloat16)
    counting.load_state_dict(layer.experts.state_dict())
    layer.experts = counting
    assert torch.equal(layer(x), expected)
    assert calls == [((120, 32), (8, 32, 48))] * 2 + [((120, 48), (8, 48, 32))]


@pytest.mark.parametrize("name", ["shared", "gpt-oss", "weight-before", "groups"])
def test_nothing_is_read_on_the_host_but_by_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grouped matmul is ours to replace here: on a CPU its own loop reads the offsets."""

    def without_reading(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        return (a.float() @ b.float().mean(0)).to(a.dtype)

    layer, x = build(config(name)), tokens(TOKENS)
    layer.experts.grouped_mm = without_reading  # type: ignore[method-assign]
    with no_host_reads():
        layer(x).sum().backward()
    layer.loop = True
    reads = itertools.count()
    tolist = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda tensor: (next(reads), tolist(tensor))[1])
    layer(x)
    assert next(reads) == 1


@pytest.mark.parametrize("name", ["shared", "gpt-oss"])
def test_runs_on_our_kernels(name: str, triton_path: KernelPath) -> None:
    """Where other tests on a CPU take torch's operators; an expert without tokens among them."""
    layer = build(config(name, experts=4, top_k=2, dim=16, hidden=24)).to(triton_path.device)
    layer.expert_bias[1] = -1e3
    x = tokens(12, dim=16).detach().to(triton_path.device).requires_grad_()
    assert grouped.path(triton_path.device) in ("triton", "torch", "interpreter")
    got, eager = layer(x), reference.moe(layer, x)
    grad = torch.randn_like(got)
    ours = {"output": got, **gradients(layer, got, x, grad)}
    theirs = {"output": eager, **gradients(layer, eager, x, grad)}
    for what, expected in theirs.items():
        assert rmse(ours[what], expected) < 0.01 * rmse(expected, torch.zeros_like(expected)), what


@pytest.mark.parametrize("kind", ["forward", "forward-pre", "backward", "backward-pre"])
def test_hooks_of_experts_are_called(kind: str) -> None:
    """The recomputing way calls no module, so it is not taken; all bits stay as they are."""
    layer, x = build(config()), tokens(TOKENS)
    expected, calls = layer(x), []
    register = {
        "forward": layer.experts.register_forward_hook,
        "forward-pre": layer.experts.register_forward_pre_hook,
        "backward": layer.experts.register_full_backward_hook,
        "backward-pre": layer.experts.register_full_backward_pre_hook,
    }[kind]
    handle = register(lambda *_: calls.append(kind))
    out = layer(x)
    out.sum().backward()
    assert torch.equal(out, expected)
    assert calls == [kind]
    handle.remove()
    assert layer.recomputes


@pytest.mark.parametrize("sharded", ["shard_experts", "fully_shard"])
@pytest.mark.parametrize("name", ["softmax-norm", "gpt-oss"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_experts_on_a_mesh_of_one_rank(precision: str, name: str, sharded: str) -> None:
    layer, x = build(config(name), precision=precision), tokens(TOKENS)
    expected = layer(x)
    grad = torch.randn_like(expected)
    truth = gradients(layer, expected, x, grad)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("ep",))
        shard_experts(layer, mesh) if sharded == "shard_experts" else fully_shard(layer.experts, mesh=mesh)
        out = layer(x)
        assert torch.equal(out, expected)
        found = gradients(layer, out, x, grad)
        for what, one in found.items():
            whole = one.full_tensor() if isinstance(one, DTensor) else one
            # Two gradients of a weight lie rounded in bf16: the recomputing way rounds them elsewhere.
            assert rmse(whole, truth[what]) <= 0.01 * rmse(truth[what], torch.zeros_like(truth[what])), what
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("way", ["recomputing", "plain"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_meta_tensors_pass(name: str, precision: str, way: str) -> None:
    layer = MoE(config(name), precision=precision, device="meta", **WAYS[way])
    out = layer(torch.empty(TOKENS, 32, device="meta", requires_grad=True))
    assert (out.shape, out.device.type) == ((TOKENS, 32), "meta")
    out.sum().backward()


def test_an_unknown_precision_lists_the_known() -> None:
    with pytest.raises(ValueError, match="precision: is 'int8'; may be one of bf16, fp8"):
        MoE(config(), precision="int8")
    layer = MoE(config())
    with pytest.raises(ValueError, match="precision: is 'fp4'"):
        layer.experts.precision = "fp4"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 3, 32), r"x: has 3 dimensions, shape \(2, 3, 32\); give \(tokens, 32\)"),
        (torch.zeros(2, 31), "x: is 31 wide; give rows of 32"),
        (torch.zeros(2, 32, dtype=torch.int64), "x: is torch.int64; cast it"),
    ],
)
def test_wrong_inputs_are_refused(x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MoE(config())(x)


# ---- torch.compile -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler does it itself
@pytest.mark.parametrize("name", ["shared", "gpt-oss"])
def test_compiles_whole_without_a_break_and_recompiles_for_no_number_of_tokens(name: str) -> None:
    torch._dynamo.reset()
    layer = build(config(name))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for count in (24, 40, 57, 8):
        x = tokens(count)
        grad = torch.randn(count, 32).bfloat16()
        stance = "default" if count in (24, 40) else "fail_on_recompile"
        with torch.compiler.set_stance(stance):
            layer.tokens_per_expert.zero_()
            out = compiled(x)
        counted = layer.tokens_per_expert.clone()
        found = gradients(layer, out, x, grad)
        layer.tokens_per_expert.zero_()
        eager = layer(x)
        assert torch.equal(out, eager)
        assert torch.equal(counted, layer.tokens_per_expert)
        for parameter, gradient in gradients(layer, eager, x, grad).items():
            assert torch.equal(gradient, found[parameter]), parameter


def test_the_counting_operator_is_well_made() -> None:
    torch.library.opcheck(torch.ops.perfguard_kernels.moe_count_tokens, (torch.zeros(4), torch.arange(4)))


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_models_can_be_built(name: str) -> None:
    moe = MODELS[name]
    layer = MoE(moe, device="meta", dtype=torch.bfloat16)
    projections = 3 * moe.dim * moe.hidden
    biases = moe.experts * (2 * moe.hidden + moe.dim + 1) if moe.clamped else 0
    expected = moe.experts * (projections + moe.dim) + moe.shared * projections + biases
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_initial_weights() -> None:
    layer = MoE(config("shared", dim=256, hidden=256))
    layer.init_weights(layer=7)
    deep = 0.02 / 4
    stds = {name: float(parameter.detach().std()) for name, parameter in layer.named_parameters()}
    for name, std in stds.items():
        assert std == pytest.approx(0.02 if name.endswith("w1") else deep, rel=0.05), name
    assert float(layer.experts.w1.detach().abs().max()) <= 0.06
    gpt = MoE(config("gpt-oss", dim=256, hidden=256)).experts
    assert float(gpt.gate_up.detach()[:, ::2].std()) == pytest.approx(0.02, rel=0.05)
    assert not gpt.gate_up_bias.any()


def test_the_exported_grouped_matmul_is_the_one() -> None:
    from kernels import moe

    assert moe.grouped_mm is grouped.grouped_mm
