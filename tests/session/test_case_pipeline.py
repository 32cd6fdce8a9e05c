"""The pipeline for one case, on the simulated GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perfguard.interpreter.running import RUNNING
from perfguard.measure.binaries.call_binaries import Binaries, OnTarget
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.devices.device import Device
from perfguard.measure.replay import seeded
from perfguard.model.call import Call, Work
from perfguard.model.config import Settings
from perfguard.model.records import Case, CaseResult, Doubt, Word
from perfguard.pytest_plugin.fixture import Guarded, seed_of
from perfguard.session.case_pipeline import ReadingPlan, Runner
from perfguard.session.child import EVERYTHING, Request
from perfguard.session.turns_file import TurnsFile
from perfguard.testing import fake

CASE = Case("suite", "double[64]", "forward", "tests/test_suite.py::test_double[64]")


@pytest.fixture
def device() -> fake.FakeDevice:
    return fake.FakeDevice(seed=1)


@pytest.fixture
def runner(device: fake.FakeDevice) -> Runner:
    return Runner(device, Settings(case_seconds=0.1))


class Double(torch.autograd.Function):
    """Twice the input; the backward pass costs two kernels."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        fake.launch("double", us=50.0)
        return 2 * x

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        fake.launch("double_backward", us=30.0)
        fake.launch("scale", us=10.0)
        return 2 * grad


def call(x: torch.Tensor, work: Work | None = None, factor: float = 2) -> Call:
    return Call(Double.apply, (x,), lambda x: factor * x, work=work)


def test_forward_and_backward_have_their_own_readings(runner: Runner) -> None:
    x = torch.randn(8, 4, requires_grad=True)
    first, second = runner.measure(call(x), CASE)
    assert (first.case.direction, second.case.direction) == ("forward", "backward")
    assert first.inputs == "float32[8,4] grad"
    before, kernels, time = (
        result.reading(name)
        for result, name in [(first, "device_time_us"), (second, "kernels"), (second, "device_time_us")]
    )
    assert before is not None
    assert before.value == pytest.approx(50, rel=0.02)
    assert kernels is not None
    assert kernels.value == ["double_backward", "scale"]
    assert time is not None
    assert time.value == pytest.approx(40, rel=0.02)
    assert x.grad is None  # nothing accumulates into the user's tensors


def test_a_wrong_result_is_not_timed(runner: Runner) -> None:
    (result,) = runner.measure(call(torch.randn(8, 4), factor=3), CASE)
    assert result.word is Word.WRONG
    assert result.readings == []


class Doubtful(torch.autograd.Function):
    """Right on the given inputs. Configuration 1 gives a wrong gradient, an outlier a wrong result."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, candidate: int) -> torch.Tensor:
        ctx.candidate = candidate  # type: ignore[attr-defined]
        fake.launch("doubtful", us=2_000.0)  # of what launches nothing, thousands of calls are simulated for a block
        return x * (3.0 if x.abs().amax() > 500 else 2.0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        fake.launch("doubtful_backward", us=2_000.0)
        return grads[0] * (2.0 + ctx.candidate), None  # type: ignore[attr-defined]


def doubtful(x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
    made: torch.Tensor = Doubtful.apply(x, candidate)
    return made


def doubtful_call() -> Call:
    x = torch.randn(8, 16, requires_grad=True)
    return Call(doubtful, (x,), lambda x: 2 * x, configurations=[{"candidate": 0}, {"candidate": 1}])


def test_a_fault_that_the_given_inputs_do_not_show_is_a_doubt_of_its_pass(device: fake.FakeDevice) -> None:
    first, second = Runner(device, Settings(case_seconds=0.1, extra_seconds=20.0)).measure(doubtful_call(), CASE)
    (derived,), (other,) = first.doubts, second.doubts
    assert derived.problem.startswith("hard input, argument 0 (")
    assert other.name == "candidate=1"
    assert other.problem.startswith("configuration 1 (candidate=1): gradient of argument 0: RMSE ")
    for each in (first, second):
        assert each.verdicts == []
        assert each.is_timed


def test_a_case_goes_on_in_the_next_run_and_its_base_is_asked_without(device: fake.FakeDevice, tmp_path: Path) -> None:
    RUNNING.forget()  # what earlier tests have interpreted

    def measured(asked: Request = EVERYTHING) -> tuple[CaseResult, bytes]:
        file = TurnsFile(tmp_path / "turns.json", "gpu")
        runner = Runner(device, Settings(case_seconds=0.1, extra_seconds=1e-9), ReadingPlan(asked, turns=file))
        first, _ = runner.measure(replace(doubtful_call(), configurations=()), CASE)
        file.save()
        return first, (tmp_path / "turns.json").read_bytes()

    (first, one), (second, two) = measured(), measured()
    assert first.hard is not None
    assert second.hard is not None
    assert sum(first.hard.waiting.values()) == sum(second.hard.waiting.values()) > 10
    assert one != two
    zero = Doubt("zero", "?", inputs="float32[8,16] grad", tried=[[("values", {0: "row 0 zero"})]])
    answered, three = measured(Request(numerics=True, doubts={CASE.suite: {CASE.name: [zero]}}))
    assert [each.problem for each in answered.doubts] == [""]
    assert two == three


def test_what_runs_beside_a_call_has_the_time_that_is_set(
    device: fake.FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfguard.check.hard_inputs import search

    given: list[float] = []

    def run(call: Call, seconds: float, *_: object, **__: object) -> search.HardResult:
        given.append(seconds)
        return search.HardResult()

    monkeypatch.setattr(search, "run_hard", run)
    settings = Settings(case_seconds=0.1, extra_seconds=7.5)
    Runner(device, settings, ReadingPlan()).measure(doubtful_call(), CASE)
    assert given == [7.5]
    Runner(device, settings, ReadingPlan(Request(numerics=True, worktree="/base"))).measure(doubtful_call(), CASE)
    assert len(given) == 1


def test_a_base_answers_what_it_is_asked_and_tries_nothing_else(device: fake.FakeDevice) -> None:
    zero = Doubt("zero", "?", inputs="float32[8,16] grad", tried=[[("values", {0: "row 0 zero"})]])
    large = Doubt("large", "?", inputs="float32[8,16] grad", tried=[[("values", {0: "times 2^17"})]])
    other = Doubt("candidate=1", "?", backward=True, inputs="float32[8,16] grad")
    doubts = {CASE.suite: {CASE.name: [zero, large, other]}}
    for asked in (Request(exact=False, doubts=doubts), Request(numerics=True, doubts=doubts)):
        asks = ReadingPlan(asked)
        first, second = Runner(device, Settings(case_seconds=0.1, extra_seconds=20.0), asks).measure(
            doubtful_call(), CASE
        )
        assert [(each.name, bool(each.problem)) for each in first.doubts] == [("zero", False), ("large", True)]
        assert [(each.name, bool(each.problem)) for each in second.doubts] == [("candidate=1", True)]
        assert first.hard is None


def test_a_problem_of_a_gradient_is_the_backward_case_s(runner: Runner) -> None:
    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            out = torch.empty_like(grad)
            out[:-1] = 2 * grad[:-1]
            out[-1] = torch.where(out[-1].abs() < 1e-30, 2 * grad[-1], out[-1])  # right where memory is fresh
            return out

    x = torch.randn(8, 48, requires_grad=True)
    results = runner.measure(Call(Forgets.apply, (x,), lambda x: 2 * x), CASE)
    wrong = [(result.case.direction, verdict.metric) for result in results for verdict in result.verdicts]
    assert set(wrong) == {("backward", "gradient of argument 0")}


def test_a_result_that_varies_a_little_is_told(runner: Runner) -> None:
    calls = []

    def varies(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return a @ b if len(calls) % 2 else (a.float() @ b.float() * (1 + 2.0**-12)).bfloat16()

    a, b = torch.randn(40, 64, dtype=torch.bfloat16), torch.randn(64, 40, dtype=torch.bfloat16)
    (result,) = runner.measure(Call(varies, (a, b), torch.matmul, timed=False), CASE)
    assert result.verdicts == []
    varying = result.reading("nondeterministic_outputs")
    assert varying is not None
    assert (varying.value, varying.note) == (1, "from run to run another output")
    assert any("of 10 further runs differ" in note for note in result.notes)


def test_throughput_is_told_and_an_impossible_one_refused(runner: Runner, device: fake.FakeDevice) -> None:
    ceiling = device.copy_bytes_per_second()
    possible, impossible = (int(share * ceiling * 50e-6) for share in (0.8, 1.2))
    (result,) = runner.measure(call(torch.randn(8, 4), Work(bytes=possible, flop=100)), CASE)
    assert result.throughput is not None
    assert result.throughput.copy_fraction == pytest.approx(0.8, rel=0.02)
    assert result.throughput.flop_per_second == pytest.approx(100 / 50e-6, rel=0.02)
    (refused,) = runner.measure(call(torch.randn(8, 4), Work(bytes=impossible)), CASE)
    assert refused.reading("device_time_us") is None
    assert [verdict.word for verdict in refused.verdicts] == [Word.UNRESOLVED]
    assert "of the copy ceiling" in refused.verdicts[0].reason


def test_operations_stand_beside_a_product_of_the_largest_input(runner: Runner, device: fake.FakeDevice) -> None:
    """No kernel is refused for them, and neither fresh processes nor integers have a product."""
    most = device.matmul_flop_per_second(torch.float32)
    work = Work(flop=int(0.5 * most * 50e-6))
    (result,) = runner.measure(call(torch.randn(8, 4), work), CASE)
    assert result.throughput is not None
    assert result.throughput.matmul == "float32"
    assert result.throughput.matmul_fraction == pytest.approx(0.5, rel=0.02)
    fresh = Runner(device, Settings(case_seconds=0.1), ReadingPlan(Request()))
    for other, given in (
        (fresh, call(torch.randn(8, 4), work)),
        (runner, call(torch.ones(8, 4, dtype=torch.int64), work)),
    ):
        (result,) = other.measure(given, CASE)
        assert result.throughput is not None
        assert result.throughput.flop_per_second
        assert (result.throughput.matmul, result.throughput.matmul_fraction) == ("", None)


def test_a_fresh_process_reads_without_checking(device: fake.FakeDevice) -> None:
    runner = Runner(device, Settings(case_seconds=0.1), ReadingPlan(Request()))
    first, second = runner.measure(call(torch.randn(8, 4, requires_grad=True), factor=3), CASE)
    assert first.readings
    assert second.readings
    assert first.inputs == "float32[8,4] grad"


def test_times_that_cannot_have_moved_are_not_read(device: fake.FakeDevice) -> None:
    asked: list[CaseResult] = []

    def unchanged(result: CaseResult) -> frozenset[str]:
        asked.append(result)
        return frozenset({"device_time_us"})

    plan = ReadingPlan(unchanged=unchanged)
    (result,) = Runner(device, Settings(case_seconds=0.1), plan).measure(call(torch.randn(8, 4), Work(bytes=100)), CASE)
    assert [reading.metric for reading in result.readings if reading.timed] == ["host_time_us"]
    assert result.throughput is None  # host time is no throughput
    assert [reading.metric for reading in asked[0].readings if reading.timed] == []
    assert asked[0].reading("fingerprint") is not None


def test_binaries_are_read_of_right_calls_on_the_tests_own_inputs(device: fake.FakeDevice) -> None:
    seen: list[str] = []
    followed: list[Call] = []

    class Watched(Binaries):
        def of(self, call: Call, device: Device) -> list[OnTarget]:
            seen.append("read")
            followed.append(call)
            return []

    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append("called")
        return 2 * x

    runner = Runner(
        device, Settings(case_seconds=0.1), plan=ReadingPlan(binaries=Watched(("sm_90",), Compiler(Path("unused"))))
    )
    given = Call(double, (torch.randn(8, 4),), lambda x: 2 * x)
    runner.measure(given, CASE)
    assert followed
    assert all((call.fn, call.args) == (given.fn, given.args) for call in followed)  # and derived ones as its `others`
    seen.clear()
    runner.measure(Call(double, (torch.randn(8, 4),), lambda x: 3 * x), CASE)
    assert "read" not in seen  # wrong


def test_incoming_gradients_are_not_the_inputs_once_more(device: fake.FakeDevice) -> None:
    seen: list[torch.Tensor] = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append(grad)
            return grad

    with seeded(seed_of(CASE), device):
        x = torch.randn(64, 16, requires_grad=True)
    Guarded(CASE, device, None)(Keep.apply, x, reference=lambda x: x.clone(), hard=False)
    assert len(seen) > 1
    for grad in seen:
        cosine = torch.nn.functional.cosine_similarity(grad.flatten(), x.detach().flatten(), dim=0)
        assert abs(float(cosine)) < 0.2


def test_seeding_belongs_to_the_case_and_ends_with_it(device: fake.FakeDevice) -> None:
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    with seeded(seed_of(CASE), device):
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(seed_of(CASE), device):
        assert torch.equal(torch.rand(2), first)
    other = Case("suite", "double[96]", "forward")
    with seeded(seed_of(other), device):
        assert not torch.equal(torch.rand(2), first)
