"""`perfguard accept`: what a report measured becomes a baseline, or is left alone with the reason."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, settings
from hypothesis import given as any_of
from hypothesis import strategies as st

from perfguard.cli import main
from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.judge_again import declared
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Baseline, Doubt, Report, TimedEntry, Verdict, Word, dump_report
from perfguard.model.records.baseline import as_stored
from perfguard.model.units import significant
from perfguard.render.overview import Headline
from perfguard.store.baseline_files import Store
from tests.github.fake import Gh, sha
from tests.github.reports import (
    CODE,
    HARDWARE,
    PATH,
    SESSIONS,
    SLUG,
    SUITE,
    TIMER,
    TOOLCHAIN,
    baseline_file,
    compared,
    entries,
    key,
    measured,
    paired,
    report,
)
from tests.github.test_edits import coded, of_target, seen

BASE = {"f": entries(), "g": entries()}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[tool.perfguard]\nlanes = ["{SLUG}"]\n')
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(baseline_file(BASE))
    return tmp_path


def accept(given: Report | bytes, *options: str, reason: str = "more accurate") -> int:
    path = Path("given.json")
    path.write_bytes(dump_report(given) if isinstance(given, Report) else given)
    return main(["accept", "--from", str(path), f"--reason={reason}", *options])


def in_the_file() -> Baseline:
    found = Store(Path("baselines")).load(SLUG, SUITE)
    assert found is not None
    return found


def remembered_as_written() -> BaselineSet:
    return read_files({PATH: Path(PATH).read_bytes()}, "baselines")


def stored(name: str) -> Mapping[str, Any]:
    return in_the_file().cases[key(name)].entries


def both_slower() -> Report:
    return compared({"f": 55.0, "g": 60.0})


def scaled(ratio: float) -> list[float]:
    return [significant(value * ratio) for value in SESSIONS]


def test_what_process_pairs_found_moves_the_record(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the ratio, whatever another board reads: here everything takes 4 % longer than on the record's."""
    Path(PATH).write_bytes(
        baseline_file(BASE).replace(b"power_limit_watts: 700.0", b"power_limit_watts: 700.0, board: a")
    )
    given = compared({"f": 57.2, "g": 52.0})
    given = msgspec.structs.replace(given, pairings=[paired({"f": 55.0, "g": 50.0})])
    assert accept(given) == ExitStatus.PASSED
    assert f"slower: {SLUG} area f/forward device_time_us: 50 µs -> 54.95 µs (+9.9 %)" in capsys.readouterr().out
    found = stored("f")["device_time_us"]
    assert found.sessions == pytest.approx(scaled(1.1), rel=1e-3)
    assert (found.timer, found.anchor) == ("graph-cold", None)
    assert in_the_file().provenance_of(key("f")).reason == "more accurate"
    provenance = in_the_file().provenance_of(key("f"))
    assert (provenance.board, provenance.commit, provenance.recorded) == ("a", sha("head")[:12], "2026-11-21")
    assert stored("g") == entries()
    assert accept(compared({"f": 55.0, "g": 50.0}), "-k", "g") == ExitStatus.PASSED
    assert "nothing to accept" in capsys.readouterr().out


def test_a_little_slower_than_the_base_keeps_its_reason_and_its_anchor(checkout: Path) -> None:
    assert accept(compared({"f": 51.2, "g": 50.0})) == ExitStatus.PASSED
    found = stored("f")["device_time_us"]
    assert (found.sessions[2], found.anchor) == (pytest.approx(51.2, rel=1e-3), 50.0)
    assert in_the_file().provenance_of(key("f")).reason == "more accurate"


def test_however_much_a_record_scatters_the_pairs_move_it(checkout: Path) -> None:
    wide = {"device_time_us": TimedEntry([46.0, 54.0, 50.0, 48.0, 52.0], TIMER)}
    Path(PATH).write_bytes(baseline_file({"f": entries() | wide, "g": entries()}))
    assert accept(compared({"f": 52.0, "g": 50.0})) == ExitStatus.PASSED
    assert stored("f")["device_time_us"].sessions == pytest.approx([47.84, 56.16, 52.0, 49.92, 54.08], rel=1e-3)


def test_the_record_of_other_code_than_the_base_is_moved_by_no_pair(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base had not recorded its own time: its record times the ratio would be nobody's."""
    Path(PATH).write_bytes(baseline_file({"f": entries(code=CODE)}))
    pairing = paired({"f": 55.0})
    for base_code, status in (("a" * 16, ExitStatus.USAGE_ERROR), (CODE, ExitStatus.PASSED)):
        case = msgspec.structs.replace(pairing.cases[0], base=measured("f", 0, code=base_code))
        given = msgspec.structs.replace(
            compared({"f": 55.0}), results=[measured("f", 55.0, code="b" * 16)],
            pairings=[msgspec.structs.replace(pairing, cases=[case])],
        )  # fmt: skip
        assert accept(given) == status
        told = "its record is of other code than the base's" in capsys.readouterr().out
        assert told is (status is ExitStatus.USAGE_ERROR)
    assert stored("f")["fingerprint"] == "b" * 16


def test_a_folder_inside_of_the_project_is_as_good(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "src").mkdir()
    monkeypatch.chdir(checkout / "src")
    assert accept(both_slower()) == ExitStatus.PASSED
    monkeypatch.chdir(checkout)
    assert stored("f")["device_time_us"].sessions != SESSIONS


def test_k_chooses_cases_as_pytest_does(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(both_slower(), "-k", "test_G and not f]") == ExitStatus.PASSED
    assert stored("f") == entries()
    assert stored("g")["device_time_us"].sessions == pytest.approx(scaled(1.2), rel=1e-3)
    assert accept(both_slower(), "-k", "nothing") == ExitStatus.USAGE_ERROR
    assert accept(both_slower(), "-k", "f and") == ExitStatus.USAGE_ERROR
    said = capsys.readouterr().err
    assert "-k nothing: no case" in said
    assert "-k f and: " in said


def test_nothing_is_written_twice(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is a ratio applied twice: the record is then of the measured commit."""
    given = msgspec.structs.replace(
        compared({"f": 50.0, "g": 55.0}), results=[measured("f", launches=2), measured("g", 55.0)]
    )
    accept(given)
    before = Path(PATH).read_bytes()
    assert stored("f")["launches"] == 2
    assert stored("g")["device_time_us"].sessions == pytest.approx(scaled(1.1), rel=1e-3)
    assert accept(given) == ExitStatus.PASSED
    assert "nothing to accept" in capsys.readouterr().out
    assert Path(PATH).read_bytes() == before


def test_a_time_that_no_pair_judged_is_left_with_the_reason(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(report([measured("f", 55.0), measured("g")])) == ExitStatus.USAGE_ERROR
    said = capsys.readouterr().out
    assert "left alone: g/forward device_time_us: not decided: UNPAIRED" in said
    assert "left alone: f/forward device_time_us: not decided: UNPAIRED" in said
    assert "nothing written" in said
    assert Path(PATH).read_bytes() == baseline_file(BASE)


def test_metrics_that_are_left_for_one_reason_share_a_line(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [Verdict(Word.WRONG, f"output {number}", "off by one") for number in (2, 0)]
    other = Verdict(Word.WRONG, "output 1", "off by two")
    given = msgspec.structs.replace(measured("f"), verdicts=[wrong[0], other, wrong[1]])
    assert accept(report([given, measured("g")])) == ExitStatus.USAGE_ERROR
    said = capsys.readouterr().out
    assert "f/forward output 2, output 0: WRONG, which no baseline can accept: off by one\n" in said
    assert "f/forward output 1: WRONG, which no baseline can accept: off by two\n" in said


def test_a_new_case_is_recorded_as_the_lane_measured_it(checkout: Path) -> None:
    given = report([measured("f"), measured("g"), measured("new", 50.6)])
    assert accept(given) == ExitStatus.PASSED
    assert stored("new") == {"launches": 1, "device_time_us": TimedEntry([50.6], TIMER)}
    assert in_the_file().provenance_of(key("new")).commit == sha("head")[:12]
    paired_ = msgspec.structs.replace(compared({"f": 50.0, "g": 50.0}), results=given.results)
    assert seen(paired_, remembered_as_written()).headline is Headline.ACCEPTED
    before = Path(PATH).read_bytes()
    accept(given)
    assert Path(PATH).read_bytes() == before


def test_a_new_time_of_a_recorded_case_is_recorded_on_its_machine(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(PATH).write_bytes(baseline_file({"f": entries(0)}))
    assert accept(report([measured("f", launches=2)])) == ExitStatus.PASSED
    assert stored("f") == {"launches": 2}
    assert "no process pair judged it; record it there: pytest --perfguard --perfguard-update=new" in (
        capsys.readouterr().out
    )


def test_what_compilers_make_of_a_kernel_is_accepted_by_the_record_of_its_code(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = of_target()
    Path(PATH).write_bytes(baseline_file(coded("aaaaaaaa-aaaaaaaa")))
    assert accept(given, reason="one more accumulator") == ExitStatus.PASSED
    assert "changed: nvidia-h200 area f/forward code: " in capsys.readouterr().out
    assert stored("f") == coded("bbbbbbbb-bbbbbbbb")["f"]
    assert in_the_file().provenance_of(key("f")).reason == "one more accumulator"
    head = remembered_as_written()
    assert seen(given, head, coded("aaaaaaaa-aaaaaaaa")).headline is Headline.ACCEPTED
    before = Path(PATH).read_bytes()
    assert accept(given) == ExitStatus.PASSED
    assert "nothing to accept" in capsys.readouterr().out
    assert Path(PATH).read_bytes() == before


def test_a_fault_beside_the_given_inputs_is_never_accepted_and_an_old_one_is_no_hindrance(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = Doubt("hard input", "hard input: got nan, want 0", "output", tried=[[("zero", {0: "zero"})]])
    (pairing,) = compared({"f": 55.0}).pairings
    for answer, status in (("", ExitStatus.USAGE_ERROR), (fault.problem, ExitStatus.PASSED)):
        answered = msgspec.structs.replace(measured("f", 0), doubts=[msgspec.structs.replace(fault, problem=answer)])
        case = msgspec.structs.replace(pairing.cases[0], base=answered)
        given = msgspec.structs.replace(
            compared({"f": 55.0}),
            results=[msgspec.structs.replace(measured("f", 55.0), doubts=[fault])],
            pairings=[msgspec.structs.replace(pairing, cases=[case])],
        )
        assert accept(given) == status
        told = "f/forward output: WRONG, which no baseline can accept: hard input: got nan" in capsys.readouterr().out
        assert told is (status is ExitStatus.USAGE_ERROR)
    assert stored("f")["device_time_us"].sessions == pytest.approx(scaled(1.1), rel=1e-3)


def test_another_toolchain_is_refused_with_the_next_step(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = msgspec.structs.replace(TOOLCHAIN, driver="590.1")
    assert accept(msgspec.structs.replace(both_slower(), toolchain=newer)) == ExitStatus.USAGE_ERROR
    said = capsys.readouterr().out
    assert "measured under another toolchain (driver 580.1 -> 590.1); record it there: pytest --perfguard" in said
    assert Path(PATH).read_bytes() == baseline_file(BASE)


def test_numerics_are_never_accepted(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = msgspec.structs.replace(measured("f", launches=3), verdicts=[Verdict(Word.WRONG, "output", "off by one")])
    assert accept(report([wrong, measured("g")])) == ExitStatus.USAGE_ERROR
    assert "f/forward output: WRONG, which no baseline can accept: off by one" in capsys.readouterr().out
    assert Path(PATH).read_bytes() == baseline_file(BASE)


def test_a_report_that_is_none_and_a_reason_that_is_none(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(b"{}") == ExitStatus.USAGE_ERROR
    assert accept(both_slower(), reason=" ") == ExitStatus.USAGE_ERROR
    assert accept(both_slower(), "--lane", "amd-mi300x") == ExitStatus.USAGE_ERROR
    assert main(["accept", "--from", "absent.json", "--reason=x"]) == ExitStatus.USAGE_ERROR
    said = capsys.readouterr().err
    for part in (
        "given.json: report schema None",
        "--reason: empty",
        "--lane amd-mi300x",
        "absent.json: cannot be read",
    ):
        assert part in said
    assert Path(PATH).read_bytes() == baseline_file(BASE)


def test_a_report_cannot_lead_out_of_the_baselines(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = msgspec.structs.replace(measured("f").case, suite="../../evil")
    assert accept(report([msgspec.structs.replace(measured("f"), case=case)])) == ExitStatus.USAGE_ERROR
    hardware = msgspec.structs.replace(HARDWARE, slug="../evil")
    assert accept(report([measured("f")], hardware=hardware)) == ExitStatus.USAGE_ERROR
    assert sorted(path.name for path in checkout.rglob("*") if path.is_file()) == [
        "area.yaml", "given.json", "pyproject.toml"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        *((name, 2, f"{name!r} names a field of a baseline") for name in ("inputs", "recording", "facts")),
        ("launches", -3, "invalid value: value is -3"),
        ("launches", -0.5, "invalid value: value is -0.5"),
        ("sm_90.registers", {"kernel": -1}, "invalid value: value is -1"),
    ],
)
def test_what_no_baseline_can_hold_is_left_alone_with_the_reason(
    checkout: Path, capsys: pytest.CaptureFixture[str], metric: str, value: Any, said: str
) -> None:
    strange = measured("f")
    readings = [each for each in strange.readings if each.metric != metric]
    readings.append(msgspec.structs.replace(strange.readings[0], metric=metric, value=value))
    given = report([msgspec.structs.replace(strange, readings=readings), measured("g", launches=2)])
    assert accept(given) == ExitStatus.PASSED
    out = capsys.readouterr().out
    assert "left alone: f/forward: " in out
    assert said in out
    assert stored("g")["launches"] == 2
    assert stored("f") == entries()


NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["inputs", "cases", "sessions", "timer", "anchor", "schema", "null", "-", "1e5", "~", "...", "<<", "=", "\x85"]
)
NUMBERS = st.integers(0, 2**63) | st.floats(0, 1e15)
VALUES = NUMBERS | st.text(max_size=8) | st.lists(NAMES, max_size=3) | st.dictionaries(
    NAMES, NUMBERS | st.text(max_size=8), max_size=3
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@any_of(metric=NAMES, value=VALUES)
@example(metric="sm_90.registers", value={"timer": 32})
@example(metric="sm_90.registers", value={"sessions": 5, "timer": 32})
@example(metric="sm_90.entry", value={"timer": "graph-cold", "sessions": "few"})
def test_any_name_and_value_is_stored_as_it_is_or_left_alone(metric: str, value: Any) -> None:
    strange = measured("new", us=0)
    strange = msgspec.structs.replace(
        strange, readings=[msgspec.structs.replace(strange.readings[0], metric=metric, value=value)]
    )
    try:
        data = dump_report(report([strange]))
    except UnicodeEncodeError:
        return
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path(PATH).parent.mkdir(parents=True)
        Path(PATH).write_bytes(baseline_file(BASE))
        limits = declared(metric)  # one of our own may be such that it is only shown
        if accept(data) == ExitStatus.PASSED and (limits is None or limits.gated or limits.stored):
            assert stored("new") == {metric: as_stored(value)}
        else:
            assert Path(PATH).read_bytes() == baseline_file(BASE)


def git(*arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(**files: str) -> str:
    """A commit with these files (`__` for a dot); its hash."""
    for name, text in files.items():
        Path(name.replace("__", ".")).write_text(text)
    git("add", "--all", ":!given.json")
    git("commit", "--quiet", "--allow-empty", "-m", "more")
    return git("rev-parse", "HEAD")


def of_commit(commit: str) -> Report:
    return msgspec.structs.replace(both_slower(), commit=commit)


def test_a_report_of_other_code_than_the_checkout_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git("init", "--quiet")
    measured_at = committed(kernel__py="1")
    for given in (measured_at, measured_at[:12], f"{measured_at[:12]}+"):
        assert accept(of_commit(given)) == ExitStatus.PASSED, given
        git("checkout", "--quiet", "--", ".")
    committed(kernel__py="2")
    for given in (measured_at, measured_at[:12], f"{measured_at[:12]}+"):
        assert accept(of_commit(given)) == ExitStatus.USAGE_ERROR, given
        said = capsys.readouterr().err
        assert f"measured {measured_at[:12]}, from which this checkout differs in kernel.py" in said
        assert f"git checkout {measured_at[:12]}" in said
    assert Path(PATH).read_bytes() == baseline_file(BASE)
    Path("kernel.py").write_text("1")  # the code, if not the commit
    assert accept(of_commit(measured_at)) == ExitStatus.PASSED


def test_commits_of_baselines_and_documents_do_not_outdate_a_report(checkout: Path) -> None:
    git("init", "--quiet")
    measured_at = committed(kernel__py="1")
    assert accept(of_commit(measured_at), "-k", "f") == ExitStatus.PASSED
    committed(README__md="more")
    assert accept(of_commit(measured_at)) == ExitStatus.PASSED
    assert stored("g")["device_time_us"].sessions == pytest.approx(scaled(1.2), rel=1e-3)


@pytest.mark.parametrize("commit", ["0" * 40, "deadbeef1234", "--output=x", "HEAD", "main", "zz"])
def test_a_commit_that_the_clone_does_not_hold_is_named(
    checkout: Path, capsys: pytest.CaptureFixture[str], commit: str
) -> None:
    git("init", "--quiet", "--initial-branch=main")
    committed(kernel__py="1")
    assert accept(of_commit(commit)) == ExitStatus.USAGE_ERROR
    assert f"measured {commit[:12]!r}, which is no commit of this clone; fetch it" in capsys.readouterr().err
    assert not Path("x").exists()


def test_without_git_there_is_nothing_to_compare_with(checkout: Path) -> None:
    assert accept(of_commit("deadbeef1234")) == ExitStatus.PASSED


@pytest.fixture
def gh(checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Gh:
    return Gh(tmp_path_factory.mktemp("gh"), monkeypatch)


RUN, FILE = ["accept", "--run", "5001", "--reason", "why"], f"report-{SLUG}.json"


def test_the_command_of_a_red_comment_works_as_copied(gh: Gh, capsys: pytest.CaptureFixture[str]) -> None:
    """The last attempt of a lane counts, and no lane whose name only begins so."""
    gh.has(f"perfguard-{SLUG}-2", dump_report(both_slower()), FILE)
    gh.has(f"perfguard-{SLUG}-10", dump_report(both_slower()), FILE)
    gh.has(f"perfguard-{SLUG}-2", dump_report(both_slower()), "report-other.json")
    gh.has(f"perfguard-{SLUG}-large-11", dump_report(both_slower()), FILE)
    assert main([*RUN, "--lane", "amd-mi300x"]) == ExitStatus.USAGE_ERROR
    assert "amd-mi300x: 0 reports were uploaded, and one is needed; run the lane again" in capsys.readouterr().err
    assert main([*RUN, "--lane", SLUG]) == ExitStatus.PASSED
    assert stored("f")["device_time_us"].sessions == pytest.approx(scaled(1.1), rel=1e-3)


def test_a_lane_that_uploaded_another_ones_report_is_left_out(gh: Gh, capsys: pytest.CaptureFixture[str]) -> None:
    gh.has("perfguard-amd-mi300x-1", dump_report(both_slower()), FILE)
    assert main([*RUN, "--lane", "amd-mi300x"]) == ExitStatus.USAGE_ERROR
    assert f"amd-mi300x: its report is of '{SLUG}'; run the lane again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'could not find any' >&2\necho artifacts >&2; exit 1", "could not find any artifacts; or download the"),
        ("exit 4", "gh ended with status 4; or download the lane's report"),
        ("", "gh is not installed; install https://cli.github.com and log in: gh auth login; or download"),
    ],
)
def test_one_line_says_what_is_missing(
    gh: Gh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, said: str
) -> None:
    gh.says(script)
    if not script:
        monkeypatch.setenv("PATH", "")
    assert main([*RUN, "--lane", SLUG]) == ExitStatus.USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"perfguard: --run 5001: {said}")
