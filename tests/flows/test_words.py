"""Every way in which a case is not judged has its own word, and none of them is silently green.

What is changed is the record's commit where times are not what a test is about: no base is asked then.
"""

from __future__ import annotations

import re
import shutil

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project


def test_a_removed_case_is_stale_and_can_be_removed(recorded: Project) -> None:
    recorded.test_file(TEST.replace("[64, 96]", "[64]"))
    recorded.record_is_of_head()
    result = recorded.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*baselines hold 2*", "STALE  1 case (*): *; remove: *=stale"])
    assert [verdict["case"] for verdict in recorded.report()["stale"]] == ["double[96]/forward"]
    recorded.guard("--perfguard-update").stdout.fnmatch_lines(["STALE  1 case (*): *--perfguard-update=stale*"])
    assert "double[96]" in recorded.baseline.read_text()  # it goes only where that is asked for by name
    assert recorded.guard("--perfguard-update=stale").ret == ExitStatus.PASSED
    assert "double[96]" not in recorded.baseline.read_text()


def test_other_hardware_is_named(recorded: Project) -> None:
    result = recorded.guard("--perfguard-device=fake:fake-two")
    assert result.ret == ExitStatus.PASSED
    both = "(known on fake-gpu, not on fake-two)"
    result.stdout.fnmatch_lines(
        [
            "*fake-two, 0 of 2 cases guarded*",
            f"OTHER_HARDWARE  2 cases (*): stored for other hardware only {both}; record: *",
        ]
    )


def test_a_time_of_another_toolchain_is_drift_where_no_base_answers(recorded: Project) -> None:
    text = recorded.baseline.read_text()
    recorded.baseline.write_text(re.sub(r"torch: [^,}\s]+", "torch: 2.11.0", text, count=1))
    same = recorded.guard()
    assert same.ret == ExitStatus.PASSED
    same.stdout.fnmatch_lines(["2 UNCHANGED; *"])  # the tree is the base's: both sides would read the same
    # Base and working tree run under one toolchain, whatever the record was read under.
    recorded.kernel(us=60)
    slower = recorded.guard("-k", "64")
    assert slower.ret == ExitStatus.REGRESSED
    slower.stdout.fnmatch_lines(["SLOWER  double?64?/forward  device_time_us *"])
    shutil.rmtree(recorded.path / ".git")  # nobody can be asked
    alone = recorded.guard()
    assert alone.ret == ExitStatus.PASSED
    alone.stdout.fnmatch_lines(["DRIFT  2 cases (*): *torch 2.11.0 -> *"])


def test_other_timer_is_method_changed(recorded: Project) -> None:
    recorded.of_three_sessions()
    text = recorded.baseline.read_text()
    recorded.baseline.write_text(re.sub(r"timer: graph-[\w-]+", "timer: sundial", text))
    recorded.kernel(us=51.0)
    shutil.rmtree(recorded.path / ".git")  # with a base, process pairs would tell
    result = recorded.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["METHOD_CHANGED  2 cases (*): *sundial*"])


def test_another_shape_behind_the_name_is_method_changed(recorded: Project) -> None:
    recorded.test_file(TEST.replace("torch.randn(n, 16)", "torch.randn(n, 32)"))
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["METHOD_CHANGED  1 case (*): *64,16*64,32*"])
    assert recorded.words("device_time_us") == {"double[64]/forward": {"METHOD_CHANGED"}}


def test_strict_makes_new_cases_fail(project: Project) -> None:
    project.configure(strict=True)
    result = project.guard()
    assert result.ret == ExitStatus.UNGUARDED
    result.stdout.fnmatch_lines(["*2 failed*"])


def test_strict_passes_what_is_guarded(recorded: Project) -> None:
    recorded.configure(strict=True)
    recorded.record_is_of_head()
    assert recorded.guard().ret == ExitStatus.PASSED


def test_few_sessions_are_unresolved_and_can_be_added(recorded: Project) -> None:
    """A further session of all that is known needs no other process."""
    recorded.configure(pair_minutes=0)
    result = recorded.guard()
    assert result.ret == ExitStatus.UNGUARDED
    assert recorded.words("device_time_us")["double[64]/forward"] == {"UNRESOLVED"}
    result.stdout.fnmatch_lines(
        ["inconclusive: 2 of 2 timed cases could not be judged: UNPAIRED: * pair_minutes is 0*"]
    )
    for _ in range(2):
        recorded.guard()
        assert recorded.words("host_time_us")["double[64]/forward"] == {"UNRESOLVED"}
        update = recorded.guard("--perfguard-update=new")
        assert update.ret == ExitStatus.PASSED
        update.stdout.no_fnmatch_line("*fresh process*")
        update.stdout.fnmatch_lines(["perfguard: update: new: 4 times of 2 cases: another session"])
    update.stdout.no_fnmatch_line("*a record screens from*")
    assert len(re.findall(r"sessions: \[[^,]+, [^,]+, [^,]+\]", recorded.baseline.read_text())) == 4
    # A host time's promise is so coarse that no board and no day matter: its record is enough now.
    recorded.guard()
    assert recorded.words("host_time_us")["double[64]/forward"] == {"PASS"}


def test_a_throwing_test_is_broken_with_its_step(recorded: Project) -> None:
    recorded.test_file(TEST.replace("    x = torch.randn(n, 16)", "    raise RuntimeError('no inputs today')"))
    result = recorded.guard()
    assert result.ret == ExitStatus.NOTHING_MEASURED or result.ret == ExitStatus.TESTS_FAILED
    result.stdout.fnmatch_lines(["BROKEN  double?64?/forward*call raised RuntimeError: no inputs today*"])


def test_a_crashing_process_pair_accuses_nobody(recorded: Project) -> None:
    recorded.kernel(us=60)
    source = (recorded.path / "kernel.py").read_text()
    crash = "import sys, os\nif any('perfguard-session' in a for a in sys.argv): os._exit(7)\n"
    (recorded.path / "kernel.py").write_text(crash + source)
    result = recorded.guard()
    assert result.ret == ExitStatus.UNGUARDED
    result.stdout.fnmatch_lines(
        ["inconclusive: 2 of 2 timed cases *: UNPAIRED: the working tree: pytest ended with status 7"]
    )


def test_a_second_call_needs_a_label(project: Project) -> None:
    again = TEST + "    perfguard(kernel.double, x, reference=lambda x: 2 * x)\n"
    project.test_file(again)
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    result.stdout.fnmatch_lines(["*two guarded calls with label ''*"])
    project.test_file(again.replace("reference=lambda x: 2 * x)\n", "reference=lambda x: 2 * x, label='b')\n"))
    assert project.guard().ret == ExitStatus.PASSED


def test_a_skipped_case_is_not_silently_green(recorded: Project) -> None:
    recorded.test_file(TEST.replace("    x = ", "    if n == 64: pytest.skip('not today')\n    x = "))
    recorded.record_is_of_head()
    result = recorded.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*1 of 2 cases guarded*", "UNRESOLVED  1 case (*): *its test was skipped: not today"])
    recorded.configure(strict=True)
    recorded.record_is_of_head()
    assert recorded.guard().ret == ExitStatus.UNGUARDED


def test_unsupported_is_declared_and_listed(recorded: Project) -> None:
    recorded.test_file(TEST.replace("    x = ", "    if n == 64: perfguard.unsupported('needs fp4')\n    x = "))
    recorded.record_is_of_head()
    result = recorded.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["UNSUPPORTED  1 case (*): *(needs fp4)"])
    assert recorded.words()["double[64]/forward"] == {"UNSUPPORTED"}
