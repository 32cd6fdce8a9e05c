"""Private attributes that only objects have: of a tuner, an operator of a user's, a setting, a worker, a benchmark."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfguard._compat import pytest_internals, torch_compiler, torch_internals, triton_internals
from perfguard._compat.private import version_of
from tests.nursery import Nursery


def gone(project: str, name: str, used_for: str) -> str:
    return f"{version_of(project)} no longer has {name}, used for {used_for}"


def test_a_setting_tells_its_default_and_a_storage_its_address() -> None:
    entry = torch_compiler.settings_of(torch_compiler.FUNCTORCH.get())["donated_buffer"]
    for name in ("default", "user_override"):
        assert hasattr(entry, name), gone("torch", f"_ConfigEntry().{name}", "reporting settings that are left changed")
    tensor = torch.zeros(4)
    assert torch_internals.storage_address(tensor) == torch_internals.storage_address(tensor[2:])
    assert torch_internals.storage_address(tensor) != torch_internals.storage_address(torch.zeros(4))


def test_a_tuner_tells_its_configurations_and_times() -> None:
    triton = pytest.importorskip("triton")

    @triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
    @triton.jit
    def kernel(x: Any, n: Any, BLOCK: triton.language.constexpr) -> None:
        pass

    assert isinstance(kernel, triton_internals.AUTOTUNER.get())
    for name in ("arg_names", "base_fn", "configs", "early_config_prune", "fn", "keys"):
        assert hasattr(kernel, name), gone("triton", f"Autotuner().{name}", "following tuners and their choices")
    for name in ("all_kwargs", "pre_hook"):
        assert hasattr(kernel.configs[0], name), gone("triton", f"Config().{name}", "following tuners")
    for name in ("_fn_name", "arg_names", "fn", "module", "params"):
        assert hasattr(kernel.fn, name), gone("triton", f"JITFunction().{name}", "following launches")


def test_an_operator_of_a_user_s_tells_its_implementation() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    made = torch.library.custom_op("perfguard_canary::double", double, mutates_args=())
    assert torch_internals.has_custom_operators()
    operator = torch.ops.perfguard_canary.double.default
    message = gone("torch", "CustomOpDef()._backend_fns", "following operators that a user made of Triton kernels")
    assert torch_internals.own_implementation(operator) is not None, message
    assert torch_internals.own_implementation(torch.ops.aten.add.Tensor) is None
    assert made is not None
    assert torch_internals.schema_of(operator).name == "perfguard_canary::double"


def test_torch_s_own_custom_operators_load_no_compiler(nursery: Nursery) -> None:
    """They are there once torch is imported, and each process of a run would import torch.compile for them."""
    asked = "from perfguard._compat import torch_internals as t; print(len(t.CUSTOM.get()), t.has_custom_operators())"
    line = [nursery.python, "-c", asked]
    count, found = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()
    assert int(count) > 0
    assert found == "False"


def test_described_operators_are_known_however_they_were_described() -> None:
    assert not torch_internals.has_own_fake(torch.ops.aten.add.Tensor)
    library = torch.library.Library("perfguard_described", "DEF")
    for name in ("faked", "meta", "bare"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.clone, "CPU")
    torch.library.register_fake("perfguard_described::faked", torch.empty_like, lib=library)
    library.impl("meta", torch.empty_like, "Meta")
    operators = torch.ops.perfguard_described
    assert torch_internals.has_own_fakes()
    message = gone("torch", "the registries of fake implementations", "comparing them with their operators")
    assert torch_internals.has_own_fake(operators.faked.default), message
    assert torch_internals.has_own_fake(operators.meta.default), message
    assert not torch_internals.has_own_fake(operators.bare.default)


def test_an_expression_is_that_of_pytest_s_k() -> None:
    chosen = pytest_internals.compiled_expression("rms and not slow")
    assert chosen(lambda word: word in {"rms"})
    assert not chosen(lambda word: word in {"rms", "slow"})
    with pytest.raises(Exception, match="expected"):
        pytest_internals.compiled_expression("rms and")


def test_the_rounds_of_a_benchmark(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytest_benchmark")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # in a worker benchmarks run once
    pytester.makeconftest(
        """
        import pytest
        from perfguard._compat.pytest_internals import benchmark_rounds

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_teardown(item):
            print("rounds:", len(benchmark_rounds(item)), benchmark_rounds(item) > [])
            return (yield)
        """
    )
    pytester.makepyfile("def test_sum(benchmark):\n    benchmark.pedantic(sum, ([1, 2],), rounds=7, iterations=1)\n")
    done = pytester.runpytest_subprocess("-s", "-p", "no:perfguard", "-p", "no:cacheprovider")
    assert "rounds: 7 True" in done.stdout.str(), gone(
        "pytest_benchmark", "fixture.stats.stats.data", "guarding its tests"
    )
    assert not pytest_internals.benchmark_rounds(SimpleNamespace())  # type: ignore[arg-type]


def test_a_worker_tells_what_it_was_given(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makeconftest(
        """
        import pytest
        from perfguard._compat.pytest_internals import worker_input

        class Giving:
            def pytest_configure_node(self, node):
                node.workerinput["perfguard_canary"] = f"for {node.workerinput['workerid']}"

        def pytest_configure(config):
            if hasattr(config, "workerinput"):
                config.stash_given = worker_input(config)["perfguard_canary"]
            else:
                config.pluginmanager.register(Giving())

        @pytest.fixture
        def given(pytestconfig):
            return pytestconfig.stash_given
        """
    )
    pytester.makepyfile("def test_given(given):\n    assert given == 'for gw0'\n")
    done = pytester.runpytest_subprocess("-n", "1", "-p", "no:perfguard", "-p", "no:cacheprovider")
    message = gone("xdist", "WorkerController().workerinput", "giving each worker a device")
    assert done.ret == 0, f"{message}: {done.stdout.str()}"
