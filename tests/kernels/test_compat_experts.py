"""Converted expert weights: a stranger's module multiplies by our kernels, compiled and sharded, too."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels import fp8, grouped
from kernels.compat.experts import ExpertWeight, Precision, convert
from tests.nursery import Nursery

ROOT = Path(__file__).parents[2]
OFFS = torch.tensor([16, 32, 32, 64], dtype=torch.int32)


class Experts(nn.Module):
    """Of a library that knows nothing of us."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 48, 32) / 6)

    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.w.transpose(-2, -1), offs=offs)  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.experts = Experts()

    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        return self.experts(self.linear(x), offs)  # type: ignore[no-any-return]


def model() -> Model:
    torch.manual_seed(0)
    return Model().bfloat16()


def experts_of(name: str, parameter: nn.Parameter) -> bool:
    return "experts" in name


def ours(x: Tensor, w: Tensor, precision: Precision) -> Tensor:
    return fp8.grouped_mm(x, w.transpose(1, 2), OFFS) if precision == "fp8" else grouped.grouped_mm(x, w.mT, OFFS)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_product_and_its_gradients_are_ours(precision: Precision, compiled: bool) -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    plain, converted = model(), model()
    assert convert(converted, experts_of, precision=precision) == ["experts.w"]
    wanted = ours(plain.linear(x), plain.experts.w, precision)
    call = torch.compile(converted, fullgraph=True, backend="aot_eager") if compiled else converted
    found = call(x, OFFS)
    assert torch.equal(found, wanted)
    for each in (found, wanted):
        each.float().square().mean().backward()
    gradients = [(a.grad, b.grad) for a, b in zip(converted.parameters(), plain.parameters(), strict=True)]
    for got, want in gradients:
        assert got is not None
        assert want is not None
        assert torch.equal(got, want)


def test_the_weight_is_still_a_parameter_that_optimizers_and_checkpoints_know() -> None:
    converted = model()
    convert(converted, experts_of)
    before = converted.experts.w.plain.clone()  # type: ignore[operator]
    optimizer = torch.optim.AdamW(converted.parameters(), lr=0.1)
    converted(torch.randn(64, 32).bfloat16(), OFFS).float().square().mean().backward()
    optimizer.step()
    assert isinstance(converted.experts.w, ExpertWeight)
    assert not torch.equal(converted.experts.w.plain, before)
    again = model()
    convert(again, experts_of)
    again.load_state_dict(converted.state_dict())
    assert torch.equal(again.experts.w.plain, converted.experts.w.plain)  # type: ignore[arg-type]


def test_weights_of_two_precisions_are_updated_together() -> None:
    """Optimizers hand all weights to one operator where they can."""
    both = nn.ModuleList([model(), model()])
    convert(both[0], experts_of, precision="fp8")
    convert(both[1], experts_of, precision="bf16")
    before = [each.experts.w.plain.clone() for each in both]  # type: ignore[operator, union-attr]
    for each in both:
        each(torch.randn(64, 32).bfloat16(), OFFS).float().square().mean().backward()
    torch.optim.SGD(both.parameters(), lr=0.1, foreach=True).step()
    for each, old in zip(both, before, strict=True):
        assert isinstance(each.experts.w, ExpertWeight)
        assert not torch.equal(each.experts.w.plain, old)


def test_other_operations_see_the_plain_tensor() -> None:
    converted = model()
    convert(converted, experts_of)
    total = converted.experts.w.float().sum(0)
    assert type(converted.experts.w * 2) is Tensor
    assert torch.equal(total, model().experts.w.float().sum(0))


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda w: w,
    "split": lambda w: w.split(16, -1)[0],
    "split by sizes": lambda w: w.split([16, 32], -1)[0],
    "chunk": lambda w: w.chunk(3, -1)[0],
    "unsafe_chunk": lambda w: w.unsafe_chunk(3, -1)[0],
    "unsafe_split": lambda w: w.unsafe_split(16, -1)[0],
    "narrow": lambda w: w.narrow(-1, 0, 16),
    "slice": lambda w: w[..., :16],
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_part_of_a_weight_is_a_weight(precision: Precision, form: str) -> None:
    w, x = torch.randn(4, 32, 48).bfloat16(), torch.randn(64, 32).bfloat16()
    part = FORMS[form](ExpertWeight(w, precision))
    assert isinstance(part, ExpertWeight)
    product = fp8.grouped_mm if precision == "fp8" else grouped.grouped_mm
    assert torch.equal(torch._grouped_mm(x, part, offs=OFFS), product(x, part.plain, OFFS))


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_operands_by_name(precision: Precision, dtype: torch.dtype) -> None:
    """As torch's two functions name them; the result has the dtype of the rows."""
    w, x = torch.randn(4, 32, 48).to(dtype), torch.randn(64, 32).to(dtype)
    converted = ExpertWeight(w, precision)
    wanted = (fp8.grouped_mm if precision == "fp8" else grouped.grouped_mm)(x, w, OFFS).to(dtype)
    calls = [torch._grouped_mm(x, converted, OFFS), torch._grouped_mm(x, mat2=converted, offs=OFFS)]
    calls.append(torch._grouped_mm(x, converted, offs=OFFS, out_dtype=dtype))
    if hasattr(nn.functional, "grouped_mm"):
        calls.append(nn.functional.grouped_mm(mat_a=x, mat_b=converted, offs=OFFS))
    for found in calls:
        assert found.dtype == dtype
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "offs: is None; give the end of each group"),
        ({"offs": OFFS, "out_dtype": torch.float32}, "out_dtype: is torch.float32; may be torch.bfloat16"),
        ({"offs": OFFS, "bias": torch.zeros(48)}, "bias: is not supported"),
    ],
)
def test_what_is_not_multiplied_is_named(precision: Precision, options: dict[str, Any], message: str) -> None:
    converted = ExpertWeight(torch.randn(4, 32, 48).bfloat16(), precision)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        torch._grouped_mm(torch.randn(64, 32).bfloat16(), converted, **options)


def test_what_cannot_be_converted_is_named() -> None:
    with pytest.raises(ValueError, match=r"no parameter was chosen"):
        convert(model(), lambda name, parameter: False)
    with pytest.raises(ValueError, match=r"linear.weight: has shape \(32, 32\); an expert weight has three dimensions"):
        convert(model(), lambda name, parameter: name == "linear.weight")


SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from kernels.compat.experts import convert
from tests.kernels.test_compat_experts import OFFS, Model, experts_of

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model, alone = Model(), Model()
alone.load_state_dict(model.state_dict())
alone = alone.bfloat16()
for each in (model, alone):
    convert(each, experts_of)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)), mp_policy=policy)
torch.manual_seed(1)
inputs = [torch.randn(64, 32) for _ in range(2)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
call = torch.compile(model, backend="aot_eager")
for step in range(2):  # the second gathers into the memory of the first
    found = call(inputs[rank], OFFS)
    found.float().square().mean().backward()
    if not step:
        wanted = [alone(x.bfloat16(), OFFS) for x in inputs]
        sum(each.float().square().mean() / 2 for each in wanted).backward()
        assert torch.equal(found, wanted[rank])
        gradient, truth = model.experts.w.grad.full_tensor(), alone.experts.w.grad.float()
        assert (gradient - truth).norm() < 0.01 * truth.norm()  # reduced in float32 here, added in bfloat16 there
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} agrees")
dist.destroy_process_group()
"""


def test_two_ranks_that_share_the_weight_agree_with_one(tmp_path: Path, interpreting: Nursery) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [interpreting.python, "-m", "sharded"],
            cwd=tmp_path,
            env={
                **environment,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=120)
        assert f"rank {rank} agrees" in output, output
