"""The README is true: its commands exist and do what it shows, its Python prints what it says, its names are there."""

import contextlib
import io
import re
import shlex
from dataclasses import dataclass, fields

import pytest
import typer

from quadrille.algorithms.formats import record
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.matmuls.catalogue import algorithms
from quadrille.cli import hosts
from quadrille.cli import main as command_line
from quadrille.cli.words.experiment import experiment_of
from quadrille.cli.words.training import TrainingWords
from quadrille.experiments.laboratory import command as laboratories
from quadrille.experiments.workloads.fitting_grids import check_ranks
from quadrille.runtime.launching.launch import split_launcher_options
from quadrille.topologies.build import FAMILIES
from quadrille.topologies.machines import machine
from quadrille.topologies.machines.machine import load_machine
from quadrille.topologies.machines.named import MACHINES
from tests.support.quadrille import HOST, ROOT, called

README = (ROOT / "README.md").read_text()
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE_BY_USERS = re.compile(r"\.(npy|json|csv)$|^(host|cluster)\.toml$|^\.venv|^out/")
SLOW = {
    "lab",  # needs root; tests/studies/laboratory/test_laboratory.py runs it
    "bench",
    "calibrate",
    "main-job",
    "host-fidelity",
    "fidelity",
    "gpu",  # needs one
    "runtime-speed",
    "simulator-speed",
    "published-collectives",
    "published-training",
    "which-scheme",
    "overlap-worth",
    "which-grid",
    "better-network",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A `quadrille` line of the README: its words, who starts it, and what the README says that it prints."""

    words: tuple[str, ...]
    starter: str = ""
    printed: str | None = None

    def __str__(self):
        return shlex.join(self.words)

    @property
    def is_cheap(self):
        """Whether it can be run here: by itself, or by `launch`, and in seconds."""
        needs = ("cupy", "cluster.toml")
        return not self.starter and not SLOW & set(self.words) and not any(word in needs for word in self.words)


def blocks(language):
    """The fenced blocks of a language."""
    return [text for found, text in FENCED.findall(README) if found == language]


def in_shell(text):
    """The examples among the lines of a shell block."""
    for line in text.splitlines():
        if re.search(r"(^|\s)quadrille [a-z]", line):
            words = shlex.split(line, comments=True)
            at = words.index("quadrille")
            yield Example(tuple(words[at + 1 :]), starter=" ".join(words[:at]))


def in_console(text):
    """The example of a console block, with what it prints."""
    command, _, printed = text.partition("\n")
    assert command.startswith("$ quadrille "), command
    return Example(tuple(shlex.split(command)[2:]), printed=printed)


CONSOLES = [in_console(text) for text in blocks("console")]
EXAMPLES = CONSOLES + [example for text in blocks("sh") for example in in_shell(text)]


def parsed(words):
    """The name of the command and its parameters, parsed as the command line would; a wrong word raises."""
    command, context, rest = typer.main.get_command(command_line.app), None, list(words)
    name = "quadrille"
    while True:
        group = hasattr(command, "resolve_command")
        context = command.make_context(name, rest[:0] if group else rest, parent=context, resilient_parsing=group)
        if not group:
            return name, context
        name, command, rest = command.resolve_command(context, rest)


def command_of(example):
    """The command of an example, its parameters and its number of ranks; that of the ranks where it starts some."""
    if example.words[:2] == ("lab", "run"):
        _, context = parsed(example.words)
        name, inner = parsed(context.params["command"])
        return name, inner.params, int(context.params["ranks"])
    name, context = parsed(example.words)
    if name != "launch":
        return name, context.params, None
    before, command = split_launcher_options(context.args, hosts.LAUNCHABLE)
    ranks, _ = hosts.take_ranks(before)
    name, context = parsed(command)
    return name, context.params, ranks


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_example_is_a_command_with_flags_that_exist(example):
    command_of(example)


@pytest.mark.parametrize(
    "example",
    [e for e in EXAMPLES if {"run", "simulate", "schedule"} & set(e.words) and "calibrate" not in e.words],
    ids=str,
)
def test_every_experiment_shown_can_be_and_has_the_ranks_of_its_grid(example):
    name, params, ranks = command_of(example)
    assert name in ("run", "simulate", "schedule")
    experiment = experiment_of(
        TrainingWords(**{one.name: params[one.name] for one in fields(TrainingWords) if one.name in params})
    )
    starter = example.starter.split()
    if "-n" in starter:
        ranks = int(starter[starter.index("-n") + 1])
    if name == "run" and (ranks or not starter):
        check_ranks(experiment, ranks or 1)


def test_every_command_and_study_has_an_example():
    app = typer.main.get_command(command_line.app)
    named = {*app.commands, *app.commands["study"].commands} - {"study"}
    shown = {word for example in EXAMPLES for word in example.words}
    assert named - shown == set()


def test_every_algorithm_has_its_row():
    assert re.findall(r"^\| `([\w.-]+)` \| `[dzyx]", README, re.MULTILINE) == [one.name for one in algorithms()]


@pytest.mark.parametrize("example", CONSOLES, ids=str)
def test_a_prediction_prints_what_the_readme_shows(capsys, example):
    ended = called(capsys, *example.words)
    assert ended.status == 0, ended.err
    assert ended.out.rstrip("\n") == example.printed.rstrip("\n")


@pytest.mark.mpi
def test_the_cheap_examples_run_one_after_the_other(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "host.toml").write_text(HOST)
    (tmp_path / "traffic.csv").write_text("source,destination,bytes,start_s\n0,8,64000000,0\n1,40,1e6,0.001\n")
    for example in EXAMPLES:
        if example.is_cheap and example not in CONSOLES:
            ended = called(capfd, *example.words)
            assert ended.status == 0, f"{example}: {ended.err}"
            assert ("--verify" not in example.words) or "\nverified: " in ended.out, ended.out
    seen = load_record(tmp_path / "verified.json").verified.smallest_error_seen
    assert f"{seen:.2g} for the float32 product" in README.replace("\n", " ")


def test_the_python_block_prints_what_the_readme_says():
    (code,) = blocks("python")
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(code, "README.md", "exec"), {})
    after = README[README.index(code) + len(code) :]
    said = FENCED.search(after.removeprefix("```")).group(2)
    assert written.getvalue() == said


def test_the_python_is_three_calls():
    (code,) = blocks("python")
    calls = re.findall(r"^(\w+) = (\w+)\(", code, re.MULTILINE)
    assert calls == [("schedule", "matmul_schedule"), ("prediction", "simulate"), ("execution", "execute")]


def test_the_machine_file_shown_is_a_whole_one(capsys, tmp_path):
    (text,) = blocks("toml")
    path = tmp_path / "two-hosts.toml"
    path.write_text(text)
    assert load_machine(path).name == "two-hosts"
    assert called(capsys, "simulate", "--matmul", "64,64,64", "--grid", "x=16", "--machine", path).status == 0


def keys_explained(heading):
    """The keys in the first column of the first table of keys after a phrase."""
    table = README[README.index(heading) :].split("| key | what |")[1].split("\n\n")[0]
    return {key for line in table.splitlines() for key in re.findall(r"`(\w+)`", line.partition(" | ")[0])}


def test_every_key_of_a_record_is_explained():
    assert keys_explained("A record (") == set(record.Record.__struct_fields__)


def test_every_table_of_a_machine_file_is_explained():
    assert keys_explained("A machine file (") == set(machine.Machine.__struct_fields__) - {"name"}


@pytest.mark.parametrize("path", re.findall(r"`((?:device|host|network|fit|options)\.\w+)`", README))
def test_every_key_named_with_its_table_is_there(path):
    table, key = path.split(".")
    holder = {one.__name__.lower(): one for one in (machine.Device, machine.Host, machine.Network, machine.Fit)}
    assert key in (holder | {"options": record.Options})[table].__struct_fields__


def test_the_schemas_named_are_those_of_the_files():
    assert {record.SCHEMA, machine.SCHEMA, laboratories.SCHEMA} == set(re.findall(r"`(quadrille/\w+/\d+)`", README))


def test_the_families_of_topologies_are_all_named():
    (paragraph,) = re.findall(r"^`TOPOLOGY` is .*?\n\n", README, re.MULTILINE | re.DOTALL)
    assert [family for family in FAMILIES if family not in MACHINES and f"`{family}`" not in paragraph] == []


def test_every_file_and_folder_named_is_there():
    names = re.findall(r"`([\w./-]+(?:/|\.(?:py|md|toml|lock|npy|json)))`|`(LICENSE|Makefile)`", README)
    named = {one or other for one, other in names}
    assert len(named) > 8
    missing = [name for name in named if not MADE_BY_USERS.search(name) and not (ROOT / name).exists()]
    assert missing == []


def test_the_make_targets_named_are_in_the_makefile():
    targets = set(re.findall(r"`make ([a-z-]+)`", README)) | set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))
    assert {"run", "test", "bench"} <= targets
    assert targets <= set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_links_within_the_page_lead_somewhere():
    headings = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", README)) <= headings


def test_the_first_screen_shows_the_picture_of_the_design_page_and_the_table_of_make_run():
    picture = FENCED.search((ROOT / "DESIGN.md").read_text().replace("```\n", "```text\n", 1)).group(2)
    assert picture in README
    assert README.index(picture) < README.index("<!-- make run output -->") < README.index("\n## ")


def test_limits_are_stated_and_no_badge_is():
    assert "\n## Limits\n" in README
    assert "![" not in README
