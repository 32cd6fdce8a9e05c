"""Of several ranks: exchanges, gradients over ranks, layouts and pipelines that went wrong in public (class D)."""

from __future__ import annotations

from benchmarks.planting import Change, Edit, Expect, Mutant, changed, planted, wrong
from tests.corpus.quiet import another_torch

DATA, MODEL, PIPELINE, STAGES, TENSORS, WEIGHTS = (
    f"kernels/parallel/{name}.py" for name in ("data", "model", "pipeline", "stages", "tensors", "weights")
)
EXCHANGE, EXPERTS = "kernels/moe/exchange.py", "kernels/moe/experts.py"
BLOCK, COMPILE, TEST = "kernels/layers/block.py", "kernels/layers/compile.py", "test_ranks.py"


def only(test: str) -> tuple[str, ...]:
    """One test: a launch of two ranks costs seconds. What is the same on every machine: the peak of a rank's memory is
    not, on a CPU, where threads of a process group take some of it."""
    return ("-k", f"test_{test}", "--perfguard-lane=cpu")


def event(name: str, test: str, *changes: Change, expect: Expect | None = None) -> Mutant:
    """Nothing may fail."""
    expect = expect or Expect("PASS", cases=(f"{test}/*",))
    return Mutant(f"event: {name}", ("D",), "-", "ranks", changes, {"C": expect}, only(test))


MUTANTS = [
    changed(
        "D", "D1: an input left sharded before a matmul",
        "pytorch's DTensor: it gathers by itself what no line asks for, and values stay right",
        "ranks", "C",
        (Edit(TENSORS, "desired_input_layouts=(Replicate(), None)", "desired_input_layouts=(Shard(1), None)"),
         Edit(TENSORS, "tensor import Replicate\n", "tensor import Replicate, Shard\n")),
        "implicit_redistributions", "implicit_redistributions: 0 -> ", "DTensor moves data by itself",
        cases=("tensors/forward",), also=("*",), beside=("tensors/backward",), arguments=only("tensors"),
    ),
    changed(
        "D", "D3: the number of its layer is read in a block's forward pass",
        "torchtitan#2007: an attribute that differs from layer to layer makes a graph of each",
        "ranks", "C",
        (Edit(BLOCK, "self.loop = loop\n", "self.loop, self.number = loop, layer\n"),
         Edit(BLOCK, "        h_BSD = self.attend(x_BSD, rope_SP2)\n        y_TD",
              "        h_BSD = self.attend(x_BSD, rope_SP2) * (self.number + 1) / (self.number + 1)\n        y_TD")),
        "recompiles", "recompiled for block.forward: self.number == 0",
        cases=("compiled/forward",), also=("*",), beside=("compiled/backward",), arguments=only("compiled"),
    ),
    changed(
        "D", "D4: a checkpoint dispatches again",
        "torchtitan's list of what is saved, lost: the backward pass exchanges rows once more",
        "ranks", "C",
        (Edit(EXCHANGE, "    exchange = agree(plan.counts, rows_MD.shape[0], group)\n    return combine(",
              "    return checkpoint(_once, experts, rows_MD, plan, group, use_reentrant=False)\n\n\n"
              "def _once(experts, rows_MD, plan, group):\n"
              "    exchange = agree(plan.counts, rows_MD.shape[0], group)\n    return combine("),
         Edit(EXCHANGE, "import Tensor\n", "import Tensor\nfrom torch.utils.checkpoint import checkpoint\n")),
        "collectives", "+ all_to_all ep",
        cases=("experts/backward",), also=("*",), beside=("experts/forward",), arguments=only("experts"),
    ),
    wrong(
        "D", "D5: gradients of experts are left a sum",
        "torchtitan, pith-train: an expert's gradient is ep times too large, and no loss shows it",
        "ranks", "C",
        (Edit(DATA, "return gradient / ranks", "return gradient"),),
        "gradient of parameter layers.*.moe.experts.w*", "2 times the oracle's, as many as ranks of ep",
        cases=("experts/backward",), also=("*",), arguments=only("experts"),
    ),
    wrong(
        "D", "D6: gradients of all weights are left a sum",
        "pith-train, torchtitan: the divisor of one kind of weight is taken for another's",
        "ranks", "C",
        (Edit(DATA, "set_gradient_divide_factor(mesh.size())", "set_gradient_divide_factor(1)"),),
        "gradient of parameter *", "2 times the oracle's, as many as ranks of dp",
        cases=("data/backward",), also=("*",), arguments=only("data"),
    ),
    wrong(
        "D", "D8: rows are read before they have arrived",
        "a wait that was taken out before an index: a race on a GPU, wrong numbers now and then",
        "ranks", "C",
        (Edit(EXCHANGE, "return wait(all_to_all(rows, received, sent, group))",
              "return all_to_all(rows, received, sent, group)"),),
        "*", "unwaited: all_to_all ep bfloat16 at ", "the result is used before it is waited for",
        cases=("experts/*",), also=("*",), arguments=only("experts"),
    ),
    changed(
        "D", "D9: weights stay gathered after forward",
        "a switch that slipped in: less is exchanged, and all weights are held",
        "ranks", "C",
        (Edit(DATA, "reshard_after_forward=reshard_after_forward,", "reshard_after_forward=False,"),),
        "collectives", "- all_gather dp",
        cases=("data/backward",), also=("*",), beside=("data/forward",), arguments=only("data"),
    ),
    wrong(
        "D", "D10: a gathered weight is kept",
        "a closure that keeps what FSDP gathered: stale after the first step of the optimizer",
        "ranks", "C",
        (Edit(EXPERTS, "        w1_1FD, w2_1DF, w3_1FD = (",
              "        if not hasattr(self, 'kept'):\n"
              "            self.kept = self.w1.detach().clone()\n"
              "        self.here = lambda w: self.kept + w - w.detach() if w is self.w1 else w\n"
              "        w1_1FD, w2_1DF, w3_1FD = ("),),
        "*", "after the weights changed in place: something keeps old ones",
        cases=("data/*",), also=("*",), arguments=only("data"),
    ),
    changed(
        "D", "D11: the gather ahead is gone",
        "a prefetch list that was dropped: each gather waits until its block is reached",
        "ranks", "C",
        (Edit(DATA, "        block.set_modules_to_forward_prefetch([following])", "        pass"),),
        "overlap_flop", "all_gather",
        cases=("data/forward",), also=("*",), beside=("data/backward",), arguments=only("data"),
    ),
    changed(
        "D", "D12: each linear is sharded by itself",
        "as many bytes in more and smaller messages",
        "ranks", "C",
        (Edit(DATA, "        fully_shard(\n",
              "        for linear in (each for each in block.modules() if isinstance(each, nn.Linear)):\n"
              "            fully_shard(linear, mesh=mesh)\n"
              "        fully_shard(\n"),),
        "collectives", "+ all_gather dp",
        cases=("data/*",), also=("*",), arguments=only("data"),
    ),
    changed(
        "D", "D13: the exchange keeps the rows that it sent",
        "pith-train#16: rows saved for a backward pass that needs none",
        "ranks", "C",
        (Edit(EXCHANGE, "        return wait(all_to_all(rows, ",
              "        ctx.save_for_backward(rows)\n        return wait(all_to_all(rows, "),),
        "saved_activation_bytes", "saved_activation_bytes: ",
        cases=("experts/forward",), also=("*",), beside=("experts/backward",), arguments=only("experts"),
    ),
    wrong(
        "D", "D18: received rows are taken by rank, not by expert",
        "uneven splits: rows meet the weights of another expert",
        "ranks", "C",
        (Edit(EXCHANGE, "device=counts_NL.device) + shift_R", "device=counts_NL.device) + 0 * shift_R"),),
        "*", "output: RMSE",
        cases=("experts/*",), also=("*",), arguments=only("experts"),
    ),
    planted(
        "BROKEN", "D", "D14: rows are freed that did not travel",
        "pith-train#16, in review: with all experts on one rank the rows of one part are those of the next",
        "ranks", "C",
        (Edit(STAGES, "if self.exchange is not None:\n            rows.", "if True:\n            rows."),),
        "*", "its data is not allocated",
        cases=("pipeline/*",), also=("*",), arguments=only("pipeline"),
    ),
    planted(
        "BROKEN", "D", "D15: a rank without rows leaves the exchange",
        "a rank that returns early waits for nobody, and all others for it",
        "ranks", "C",
        (Edit(EXCHANGE, "    exchange = agree(plan.counts, rows_MD.shape[0], group)\n",
              "    exchange = agree(plan.counts, rows_MD.shape[0], group)\n"
              "    if not sum(exchange.received):\n        return rows_MD\n"),),
        "*",  # a wait for ever, or gloo ends the process that gets another exchange than it sent
        cases=("experts/*",), also=("*",), arguments=only("experts"),
    ),
    planted(
        "BROKEN", "D", "D16: a collective of one rank alone",
        "`if rank == 0` around a collective: the others never come",
        "ranks", "C",
        (Edit(EXCHANGE, "    experts, ranks = counts_E.shape[0], group.ranks\n",
              "    experts, ranks = counts_E.shape[0], group.ranks\n"
              "    if dist.get_rank() == 0:\n        dist.all_reduce(counts_E.clone())\n"),),
        "*", "took longer than 0.5 minutes: ranks wait in different collectives: all_reduce, all_to_all",
        cases=("experts/*",), also=("*",), arguments=only("experts"),
    ),
    planted(
        "BROKEN", "D", "D7: all ranks have the same batch",
        "a seed without the rank: the mean over the wrong ranks is right",
        "ranks", "C",
        (Edit(TEST, "manual_seed(place)", "manual_seed(0)"),),
        "*", "ranks 0 and 1 have the same",
        cases=("data/*",), also=("*",), arguments=only("data"),
    ),
    changed(
        "D", "D20: an expert of its own on four ranks",
        "torchtitan's rule for more ranks than experts, left out: gathers move padding",
        "layout", "C",
        (Edit(DATA, "(1 if few else 0)", "(0)"),),
        "collective_bytes", "all_gather efsdp bfloat16 12 KiB -> 48 KiB",
        cases=("layout/forward",), also=("*",), beside=("layout/backward",),
    ),
    changed(
        "D", "D21: rows travel in float32",
        "pith-train#16, the other way round: twice the bytes",
        "ranks", "C",
        (Edit(EXCHANGE, "arrived: Tensor = _Travel.apply(rows,", "arrived: Tensor = _Travel.apply(rows.float(),"),
         Edit(EXCHANGE, "    return arrived\n", "    return arrived.to(rows.dtype)\n")),
        "collectives", "+ all_to_all ep float32",
        cases=("experts/*",), also=("*",), arguments=only("experts"),
    ),
    wrong(
        "D", "D24: gradients of an expert's parts are summed twice",
        "experts over tp: a gradient that every rank has already is added up once more",
        "ranks", "C",
        (Edit(WEIGHTS, "        return grad, None\n", "        return wait(all_reduce(grad, ctx.group)), None\n"),
         Edit(WEIGHTS, "        return wait(all_reduce(part, group))\n",
              "        ctx.group = group\n        return wait(all_reduce(part, group))\n")),
        "gradient of parameter *", "2 times the oracle's, as many as ranks of tp",
        cases=("tensors/backward",), also=("*",), arguments=only("tensors"),
    ),
    changed(
        "D", "D26: a mesh is sliced for each layer",
        "found here: equal meshes are compared by identity, and each layer has a graph of its own",
        "ranks", "C",
        (Edit(MODEL, "split_attention(block.attention, tensors)", "split_attention(block.attention, mesh[TENSOR])"),),
        "recompiles", "recompiled for block.forward: ", "device_mesh",
        cases=("compiled/forward",), also=("*",), beside=("compiled/backward",), arguments=only("compiled"),
    ),
    changed(
        "D", "D2: a child of a compiled block is sharded by itself",
        "torchtitan#1895: its hooks, which gather, stand within what is compiled",
        "ranks", "C",
        (Edit(DATA, "        fully_shard(\n            block,",
              "        fully_shard(block.feed_forward, mesh=mesh)\n        fully_shard(\n            block,"),
         Edit(COMPILE, "backend=backend, fullgraph=True", "backend=backend")),
        "graph_breaks", "graph break at _fsdp_common.py:",
        cases=("compiled/forward",), also=("*",), beside=("compiled/backward",), arguments=only("compiled"),
    ),
    planted(
        "BROKEN", "D", "D17: splits are read before the counts have arrived",
        "torchtitan#2951: a copy to the host that nobody waits for",
        "ranks", "C",
        (Edit(EXCHANGE, "counts_NL = wait(all_to_all(counts_E, even, even, group.name)).view(ranks, -1)",
              "counts_NL = all_to_all(counts_E, even, even, group.name).view(ranks, -1)"),),
        "*",  # sizes of whatever lay in that memory: torch refuses them, or one rank has sent rows that none expects
        cases=("experts/*",), also=("*",), arguments=only("experts"),
    ),
    changed(
        "D", "D19: splits are Python ints",
        "torchtitan#2007, #2312: a graph ends where they are read, and each rank has its own behind it",
        "ranks", "C",
        (Edit(COMPILE, "backend=backend, fullgraph=True", "backend=backend"),),
        "graph_breaks", "graph break at exchange.py:", ".tolist()",
        cases=("moe_compiled/forward",), also=("*",), beside=("moe_compiled/backward",),
        arguments=only("moe_compiled"),
    ),
    planted(
        "BROKEN", "D", "D22: an exchange is lost on the way to the backward pass",
        "pith-train#32: a record of a stage is copied without it",
        "ranks", "C",
        (Edit(STAGES, "parts, exchange = self.parts, self.exchange\n", "parts, exchange = self.parts, None\n"),),
        "*", "Mismatch in shape: grad_output[0]",
        cases=("moe_pipeline/*",), also=("*",), arguments=only("moe_pipeline"),
    ),
    wrong(
        "D", "D22: weight gradients that wait are lost",
        "pith-train#32: chunks that a queue's order leaves out of the sum",
        "ranks", "C",
        (Edit(PIPELINE, "            self.store.pop()\n", "            self.store.clear()\n"),),
        "*", "RMSE",
        cases=("pipeline/*",), also=("*",), arguments=only("pipeline"),
    ),
    changed(
        "D", "D23: the two passes of a pair run one after the other",
        "a schedule whose pairs are planned and not overlapped: values are right, and nothing is hidden",
        "ranks", "C",
        (Edit(PIPELINE, "        stage.meanwhile = (other, backward)\n        forward()\n",
              "        forward()\n        backward()\n"),),
        "overlap_flop", "-> all_to_all ep int64 0, all_to_all ep float64 0",
        cases=("moe_pipeline/*",), also=("collectives",), arguments=only("moe_pipeline"),
    ),
    planted(
        "BROKEN", "D", "D25: a group may wait for hours",
        "a timeout that was raised against slow starts: a hang holds the machine until somebody looks",
        "ranks", "C",
        (Edit(TEST, "    perfguard(model, ids.to(",
              "    hours = torch.distributed.new_group(timeout=datetime.timedelta(hours=8))\n"
              "    if perfguard.rank == 0:\n        torch.distributed.barrier(hours)\n"
              "    perfguard(model, ids.to("),
         Edit(TEST, "import copy\n", "import copy\nimport datetime\n"),
         Edit("pyproject.toml", "case_minutes = 0.5", "case_minutes = 0.2")),
        "*", "took longer than 0.2 minutes: ",
        cases=("data/*",), also=("*",), arguments=only("data"),
    ),
    event("other names of groups", "data", Edit(MODEL, 'flatten(mesh[data], "dp")', 'flatten(mesh[data], "data")')),
    event(
        "a spare barrier in the test", "experts",
        Edit(TEST, "    perfguard(model, ids.to(", "    torch.distributed.barrier()\n    perfguard(model, ids.to("),
    ),
    event(
        "ranks come and speak in another order", "data",
        Edit(TEST, "    whole = whole_of(",
             "    import time\n\n    time.sleep(1 - perfguard.rank)\n    print(perfguard.rank)\n    whole = whole_of("),
    ),
    event(
        "another torch gathers nothing ahead", "data", another_torch,
        Edit(DATA, "        block.set_modules_to_forward_prefetch([following])", "        pass"),
        expect=Expect("DRIFT", "overlap_flop", cases=("data/forward",), says=("another toolchain: torch 2.11.0 -> ",)),
    ),
]  # fmt: skip
