"""Which configuration runs, how often one is chosen, and what a tuner on a device has chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from perfguard._compat.triton_internals import pinned, tuners_of
from perfguard.model.records import Word
from tests.measure.metrics.binaries import SCALE, TUNED, Reader, changed, load

X = torch.randn(64, 128)
WALK = tuple((X[:count],) for count in (1, 2, 7, 8, 16, 33, 48, 63))  # token counts


def test_every_configuration_of_a_tuner_is_compiled(reader: Reader) -> None:
    readings = reader.read(TUNED, X)
    assert list(readings["sm_90.spills"].value) == ["scale_kernel@0", "scale_kernel@1"]  # type: ignore[arg-type]
    assert readings["sm_90.configuration"].value == {"scale_kernel": "tuned: one of 2"}


def test_a_token_count_in_the_key_is_told_by_the_tunings_over_a_walk(reader: Reader) -> None:
    before = reader.read(TUNED, X, walk=WALK)
    after = reader.read(TUNED.replace('key=["width"]', 'key=["n"]'), X, walk=WALK)
    assert before["sm_90.tunings"].value == {"scale_kernel": 1}
    verdicts = changed(before, after)
    assert {name: verdict.word for name, verdict in verdicts.items()} == {"sm_90.tunings": Word.CHANGED}
    assert verdicts["sm_90.tunings"].reason == "sm_90.tunings scale_kernel 1 -> 9 (+800.0 %)"


def test_a_token_count_in_a_constant_is_told_by_the_compilations(reader: Reader) -> None:
    before = reader.read(TUNED, X, walk=WALK)
    after = reader.read(TUNED.replace("n, width, factor", "n: tl.constexpr, width, factor"), X, walk=WALK)
    reason = changed(before, after)["sm_90.compilations"].reason
    assert before["sm_90.compilations"].value == {"scale_kernel": 2}  # one a configuration: every count divides by 16
    assert reason == "sm_90.compilations scale_kernel 2 -> 18 (+800.0 %)"


def test_another_choice_explains_and_fails_nothing(reader: Reader) -> None:
    def text(block: int) -> Any:
        source = TUNED.replace('triton.Config({"BLOCK": 256}, num_warps=2), ', "").replace("1024", str(block))
        return reader.read(source, X)

    before, after = text(1024), text(2048)
    assert changed(before, after) == {}
    assert "BLOCK=2048 num_warps=4" in str(after["sm_90.configuration"].value)


def test_an_entry_that_went_is_told_by_the_one_that_is_taken_instead(reader: Reader) -> None:
    """The table is asked by the test, and answers what it would for the plain call."""

    def read(entry: str) -> Any:
        return reader.read(SCALE, X, configurations={entry: {"block": 1024}, "another": {"block": 2048}})

    before, after = read("width <= 512"), read("default")
    assert before["sm_90.entry"].value == {"scale_kernel": "width <= 512"}
    (verdict,) = changed(before, after).values()
    assert (verdict.word, verdict.metric) == (Word.CHANGED, "sm_90.entry")
    assert verdict.reason == "sm_90.entry scale_kernel width <= 512 -> default"
    assert "sm_90.entry" not in reader.read(SCALE, X, configurations=[{"block": 1024}])


def test_what_a_tuner_chose_is_read_from_it(tmp_path: Path) -> None:
    """Triton's own tuner, whose launches and clock are replaced: no kernel can run here."""
    call = load(tmp_path, TUNED)
    tuner = call.__globals__["scale_kernel"]
    ran: list[int] = []
    tuner.fn = Launcher(ran)
    tuner._do_bench = lambda kernel, quantiles: (kernel(), [ran[-1] / 256.0] * 3)[1]

    def run() -> None:
        tuner.run(X, X, X.numel(), 128, 2.0, grid=(1,), warmup=False)

    run()
    (tuned,) = tuners_of(run)
    assert (tuned.kernel, tuned.spread) == ("scale_kernel", 3.0)  # 256 takes 1, 1024 takes 4
    assert tuned.chosen.startswith("BLOCK: 256, num_warps: 2")
    assert tuned.seconds is not None
    with pinned(1):
        run()
    assert ran[-1] == 1024


class Launcher:
    """In place of a compiled kernel: notes the tile that it is launched with."""

    def __init__(self, ran: list[int]) -> None:
        self.ran = ran

    def run(self, *args: Any, BLOCK: int, **kwargs: Any) -> None:
        self.ran.append(BLOCK)
