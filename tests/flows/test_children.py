"""Other processes are started as the user's own was, whatever that was given and from wherever it came."""

from __future__ import annotations

from tests.flows.conftest import TEST, Project

SLOWED_US = 60.0


def configured(project: Project, addopts: str = "", ini: str = "") -> None:
    text = (project.path / "pyproject.toml").read_text()
    options, _, rest = text.partition("[tool.perfguard]")
    options = options.replace("-p no:cacheprovider ", "")
    options = options.replace('addopts = "', f'addopts = "{addopts} ') + ini
    (project.path / "pyproject.toml").write_text(f"{options}[tool.perfguard]{rest}")
    ignored = project.path / ".gitignore"
    ignored.write_text(ignored.read_text() + "\n.cache/\n.pytest_cache/\n" if ignored.exists() else "")


def test_options_of_the_configuration_reach_nobody_else(project: Project) -> None:
    """Nor is a value taken for a path that it also is: of `-k test_suite.py test_suite.py` the second selects."""
    configured(
        project, "-n2 --ff --strict-config -x --maxfail=1 --tb=short -vv -rA --durations=3", 'cache_dir = ".cache"\n'
    )
    arguments = ("-n0", "-k", "test_suite.py", "test_suite.py")
    project.commit()
    project.guard("--perfguard-update=new", *arguments).assert_outcomes(passed=2)
    assert "fresh process" not in project.report().get("problem", "")
    project.commit()
    project.kernel(us=SLOWED_US)
    assert project.guard(*arguments).ret == 10
    assert project.words("device_time_us") == {"double[64]/forward": {"SLOWER"}, "double[96]/forward": {"SLOWER"}}


def test_a_file_of_arguments_is_everybody_s(project: Project) -> None:
    """The device stands in the file alone; the base has no such file."""
    text = (project.path / "pyproject.toml").read_text()
    (project.path / "pyproject.toml").write_text(text.replace('device = "fake"\n', ""))
    project.commit()
    arguments = project.path / "args.txt"
    arguments.write_text("--perfguard\n--perfguard-device=fake\n-k\n64 or 96\n")
    project.run("@args.txt", "--perfguard-update=new").assert_outcomes(passed=2)
    assert [path.parent.name for path in project.path.glob("baselines/*/test_suite.yaml")] == ["fake-gpu"]
    project.kernel(us=SLOWED_US)
    assert project.run("@args.txt").ret == 10


def test_children_leave_the_user_s_cache_and_reports_alone(project: Project) -> None:
    configured(project)
    # Whoever comes first leaves its number, and all log theirs.
    logs = """
    import logging, os, pathlib
    logging.warning("here")
    if not pathlib.Path("first.txt").exists():
        pathlib.Path("first.txt").write_text(str(os.getpid()))
    x = """
    project.test_file(TEST.replace("    x = ", logs.lstrip("\n")))
    project.commit()
    options = ("--junitxml=out.xml", "--lf", "--log-file=run.log", "--log-file-format=%(process)d")
    result = project.guard("--perfguard-update=new", *options)
    result.assert_outcomes(passed=2)
    assert (project.path / "out.xml").read_text().count("<testcase") == 2
    assert (project.path / "run.log").read_text().split() == 2 * [(project.path / "first.txt").read_text()]
    failed = project.path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    assert not failed.exists()


def test_who_measured_another_device_is_refused(recorded: Project) -> None:
    """A conftest that opens what it likes in processes that start anew."""
    project = recorded
    project.kernel(us=SLOWED_US)
    other = "import sys\n\ndef pytest_configure(config):\n    if config.option.perfguard_session:\n        "
    (project.path / "conftest.py").write_text(f"{other}config.option.perfguard_device = 'fake:other'\n")
    result = project.guard()
    assert project.words("device_time_us") == {
        "double[64]/forward": {"UNRESOLVED"},
        "double[96]/forward": {"UNRESOLVED"},
    }
    result.stdout.fnmatch_lines(["*measured other, this run fake-gpu; name the device: --perfguard-device*"])
