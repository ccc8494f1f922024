import dataclasses
import os
import subprocess
import sys
from functools import reduce

import click
import pytest

from quadrille.algorithms.errors import Interruption, RunError
from quadrille.cli import main as command_line
from quadrille.cli.app import app
from quadrille.cli.host_commands import LAUNCHABLE, take_ranks
from quadrille.cli.main import main
from quadrille.cli.parsing.flags import MatmulFlags, RunFlags
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.runtime.host.console import INTERRUPTED
from quadrille.runtime.launching import launch
from tests.support.quadrille import ROOT, called

COMMANDS = ["launch", "run", "simulate", "schedule", "compare", "calibrate", "machines", "operands", "bench", "study"]
STUDIES = ["main-job", "host-fidelity", "weak-scaling", "strong-scaling"]


def test_help_names_every_command(capsys):
    ended = called(capsys, "--help")
    assert ended.status == 0
    assert [word for word in COMMANDS if f"\n  {word} " in ended.out] == COMMANDS


@pytest.mark.parametrize("words", [[], ["lab"], ["topology"], ["study"]], ids=" ".join)
def test_lists_of_commands_cut_no_sentence(capsys, words):
    listed = called(capsys, *words, "--help").out.partition("Show this message and exit.")[2]
    assert listed
    assert "..." not in listed


def test_a_flag_behind_two_dashes_is_another_programs(monkeypatch):
    heard = []
    monkeypatch.setattr(command_line, "invoke", lambda words: heard.append(list(words)) or 0)
    monkeypatch.delenv(command_line.DEBUG, raising=False)
    words = ["lab", "run", "star:hosts=2", "-n", "2", "--", "python", "mine.py", "--debug"]
    main(words)
    assert (heard, command_line.DEBUG in os.environ) == ([words], False)
    monkeypatch.setenv(command_line.DEBUG, "")
    main(["--debug", *words])
    assert (heard[1:], os.environ[command_line.DEBUG]) == ([words], "1")


def test_no_words_at_all_are_answered_with_the_help(capsys):
    assert called(capsys).out == called(capsys, "--help").out


@pytest.mark.parametrize("command", [*([name] for name in COMMANDS), *(["study", name] for name in STUDIES)])
def test_every_command_explains_itself_before_anything_is_done(capsys, command):
    ended = called(capsys, *command, "--help")
    assert ended.status == 0
    assert ended.out.startswith(f"Usage: quadrille {' '.join(command)}")


def parameters(command):
    """What a command takes: names, flags, defaults and help."""
    found = app.get_command(click.Context(app), command).params
    return [(one.name, one.opts, one.default, one.metavar, one.help) for one in found]


def test_run_and_simulate_take_the_same_words():
    assert parameters("run") == parameters("simulate")
    assert {"--matmul", "--machine", "--backend", "--json"} <= {
        flag for _, flags, *_ in parameters("run") for flag in flags
    }


def test_the_flags_of_both_have_the_defaults_of_the_command_line():
    defaults = {name: default for name, _, default, *_ in parameters("run")}
    for field in (*dataclasses.fields(MatmulFlags), *dataclasses.fields(RunFlags)):
        if field.name not in ("inputs", "outputs"):
            assert field.default == defaults[field.name], field.name


def test_help_imports_neither_numpy_nor_mpi_nor_rich():
    program = (
        "import sys; from quadrille.cli.main import main; main(['--help']);"
        "print(sorted({'numpy', 'mpi4py', 'rich', 'simpy', 'networkx', 'scipy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "No such command 'fly' (see quadrille --help)"),
        (["run", "--speed", "9"], "run: No such option '--speed'"),
        (["run", "--json"], "'--json' requires an argument"),
        (["compare", "one.json"], "compare needs one measurement: MEASURED"),
        (["study"], "study: Missing command (see quadrille study --help)"),
        (["machines", "one", "two"], "machines: Got unexpected extra argument"),
        (["study", "host-fidelity", "--cases", "few"], "--cases 'few': a whole number from 1 is accepted"),
        (["calibrate"], "out is missing: --out FILE.toml is needed"),
        (["operands", "--matmul", "3,4,5"], "operands: no file is named; --a, --b or --dc FILE.npy is needed"),
        (
            ["lab", "run", "star:hosts=2", "run", "--grid", "x=2"],
            "'--grid'; what runs there, with its flags, goes",
        ),
        (["launch", "run"], "launch: the number of ranks is missing: quadrille launch -n RANKS"),
        (["launch", "-n", "two", "run"], "-n 'two': a whole number from 1 is accepted"),
        (["launch", "-n", "0", "run"], "-n '0': a whole number from 1 is accepted"),
        (["launch", "-n", "2"], "launch: none of the words '-n 2' is a command; it takes run, calibrate"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_status_2(capsys, words, said):
    ended = called(capsys, *words)
    assert ended.status == 2
    assert said in ended.line
    assert ended.out == ""


@pytest.mark.parametrize("words", [["-n", "4"], ["-np", "4"], ["--np", "4"]])
def test_the_number_of_ranks_is_found_among_the_launcher_s_options(words):
    assert take_ranks(words) == (4, [])
    assert take_ranks(["--map-by", "core", *words, "-x", "HOME"]) == (4, ["--map-by", "core", "-x", "HOME"])


def test_the_help_of_launch_names_the_commands_that_it_starts(capsys):
    assert f"({', '.join(LAUNCHABLE)})" in " ".join(called(capsys, "launch", "--help").out.split())


def test_launch_hands_on_the_words_of_a_command_untouched(monkeypatch):
    given = []
    monkeypatch.setattr(launch, "launch", lambda *arguments: given.append(arguments) or 7)
    status = main(["launch", "--map-by", "core", "-n", "3", "run", "--matmul", "3,4,5", "--c", "-n"])
    assert status == 7
    assert given == [(3, ["run", "--matmul", "3,4,5", "--c", "-n"], ["--map-by", "core"])]


def test_launch_explains_a_command_without_starting_ranks(monkeypatch, capsys):
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("ranks were started"))
    assert called(capsys, "launch", "-n", "2", "run", "--help").out == called(capsys, "run", "--help").out


def failing(monkeypatch, error):
    def fail(_words):
        raise error

    monkeypatch.setattr(command_line, "invoke", fail)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RunError("it did not verify"), 1, "quadrille: it did not verify\n"),
        (ZeroDivisionError("by nothing"), 1, "quadrille: ZeroDivisionError: by nothing (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "quadrille: interrupted\n"),
        (KeyboardInterrupt("a launch was interrupted"), 130, "quadrille: interrupted\n"),
        (Interruption("2 of 3 points are kept"), 130, "quadrille: interrupted: 2 of 3 points are kept\n"),
    ],
)
def test_a_failure_is_one_line_and_its_exit_status(monkeypatch, capsys, error, status, said):
    monkeypatch.delenv("QUADRILLE_DEBUG", raising=False)
    failing(monkeypatch, error)
    ended = called(capsys, "machines")
    assert (ended.status, ended.err) == (status, said)


def test_an_interrupted_launch_is_said_in_the_same_line(monkeypatch, capsys):
    monkeypatch.setattr(launch, "launch", lambda *_: INTERRUPTED)
    ended = called(capsys, "launch", "-n", "2", "run", "--matmul", "3,4,5")
    assert (ended.status, ended.err) == (130, "quadrille: interrupted\n")


IN_STORE = " answers, of this and earlier commands, are kept in STORE; go on with: quadrille launch -n 2 "


@pytest.mark.parametrize(
    ("words", "file", "kept"),
    [
        ("sweep --store STORE", "", f": 2{IN_STORE}sweep --store STORE"),
        ("sweep --store=STORE", "", f": 2{IN_STORE}sweep --store=STORE"),
        ("rank --store NEW", "", f": 0{IN_STORE}rank --store NEW".replace("in STORE", "in NEW")),
        ("sweep EXPERIMENT", 'store = "STORE"', f": 2{IN_STORE}sweep EXPERIMENT"),
        ("rank --store DAMAGED", "", ""),
        ("sweep", "", ": nothing is kept; --store FILE.sqlite keeps each answer"),
        ("sweep --csv -", "", ": nothing is kept; --store FILE.sqlite keeps each answer"),
        ("sweep --report r.html", "", ": nothing is kept; --store FILE.sqlite keeps each answer"),
        ("rank --json r.json", "", ": nothing is kept; --store FILE.sqlite keeps each answer"),
        ("sweep --csv rows.csv", "", ""),
        ("sweep EXPERIMENT", 'csv = "rows.csv"', ""),
        ("sweep EXPERIMENT", "no TOML", ""),
        ("sweep --no-such-flag", "", ""),
        ("run --matmul 3,4,5", "", ""),
    ],
)
def test_an_interrupted_command_on_ranks_says_how_many_answers_are_kept(
    monkeypatch, capsys, tmp_path, words, file, kept
):
    paths = {name: str(tmp_path / name.lower()) for name in ("STORE", "NEW", "DAMAGED", "EXPERIMENT")}

    def with_paths(text):
        return reduce(lambda text, name: text.replace(name, paths[name]), paths, text)

    with TaskStore(paths["STORE"]) as store:
        for digest, code in ((b"1", "now"), (b"2", "before")):
            store.keep(digest, "sweep point", "a point", "{}", code)
    (tmp_path / "damaged").write_text("no store")
    (tmp_path / "experiment").write_text(with_paths(file))
    monkeypatch.setattr(launch, "launch", lambda *_: INTERRUPTED)
    ended = called(capsys, "launch", "-n", "2", *with_paths(words).split())
    assert (ended.status, ended.err) == (130, f"quadrille: interrupted{with_paths(kept)}\n")
    assert not (tmp_path / "new").exists() and (tmp_path / "damaged").read_text() == "no store"


def test_debug_shows_the_traceback_too(monkeypatch, capsys):
    monkeypatch.setenv("QUADRILLE_DEBUG", "1")
    failing(monkeypatch, ZeroDivisionError("by nothing"))
    ended = called(capsys, "machines")
    assert ended.status == 1
    assert ended.err.startswith("Traceback") and ended.err.endswith("quadrille: ZeroDivisionError: by nothing\n")


def test_debug_is_heeded_wherever_it_stands(monkeypatch, capsys):
    for words in (["--debug", "run"], ["run", "--debug"]):
        monkeypatch.setenv("QUADRILLE_DEBUG", "")
        ended = called(capsys, *words)
        assert ended.status == 2
        assert "Traceback" in ended.err and "matmul is missing" in ended.err.splitlines()[-1]


def test_a_command_whose_output_nobody_reads_to_the_end_is_quiet():
    words = f"'{sys.executable}' -m quadrille machines | head -n 1"
    done = subprocess.run(words, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("perlmutter  ") and done.stderr == ""


def test_machines_gives_every_number_with_its_source(capsys):
    out = called(capsys, "machines", "perlmutter").out
    assert out.startswith("perlmutter: ")
    for line in out.splitlines()[1:-1]:
        quantity, _, source = line.strip().split(None, 2)
        assert quantity and len(source) > 10, line
    assert "frontier" in called(capsys, "machines").out


def test_a_schedule_is_printed_with_its_lanes(capsys):
    ended = called(capsys, "schedule", "--matmul", "13,7,5", "--algorithm", "4d", "--grid", "z=2,y=3")
    assert ended.status == 0
    assert "4d on z=2,y=3: m=13, k=7, n=5, float32" in ended.out
    assert "\ngather B " in ended.out and "all_gather: B → " in ended.out
