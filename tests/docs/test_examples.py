"""The examples of README and documentation: they run and print what the pages show."""

import re
import subprocess
from math import prod

import pytest

from tests.support.documents import PAGES, commands, examples, help_of, named, subcommands
from tests.support.quadrille import called

COMMANDS = commands()
STARTS_RANKS = (["launch"], ["lab", "run"])


def line(part):
    return " ".join(part) if isinstance(part, tuple) else part


RUNNABLE = [
    page for page in PAGES if {"console", "sh", "python"} & {b.language for b in examples.blocks(page.read_text())}
]


@pytest.mark.mpi
@pytest.mark.parametrize("page", RUNNABLE, ids=named)
def test_the_examples_of_a_page_run_and_print_what_it_shows(page, tmp_path, monkeypatch, capfd):
    def ended(words):
        done = called(capfd, *words)
        return done.status, done.out, done.err

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert list(examples.run_page(page.read_text(), tmp_path, ended)) == []


def faults(words):
    """Commands and options that no help text lists, also of the command that a launcher starts."""
    path = []
    while len(path) < len(words) and words[len(path)] in subcommands(*path):
        path.append(words[len(path)])
    rest, inner = list(words[len(path) :]), []
    if path in STARTS_RANKS:
        at = rest.index("--") + 1 if "--" in rest else next(i for i, word in enumerate(rest) if word in subcommands())
        rest, inner = rest[:at], faults(rest[at:])
    options = [word for word in rest if re.match(r"--\w", word)]
    unknown = [option for option in options if not re.search(rf"(^|[\s,│]){option}\b", help_of(*path))]
    return [f"{' '.join(path)}: {option}" for option in unknown] + inner if path else [f"{words[0]} is no command"]


@pytest.mark.parametrize(("page", "starter", "words"), COMMANDS, ids=line)
def test_every_example_is_a_command_with_options_that_exist(page, starter, words):
    assert faults(words) == []


RUNS = [
    one
    for one in COMMANDS
    if "run" in one[2] and "--grid" in one[2] and re.search(r"-n \d", f"{one[1]} {line(one[2])}")
]


@pytest.mark.parametrize(("page", "starter", "words"), RUNS, ids=line)
def test_every_run_has_as_many_ranks_as_its_grid(page, starter, words):
    ranks = int(re.search(r"-n (\d+)", f"{starter} {line(words)}")[1])
    assert prod(int(length) for length in re.findall(r"=(\d+)", words[words.index("--grid") + 1])) == ranks


def test_every_command_and_study_has_an_example():
    names = {*subcommands(), *subcommands("study"), *subcommands("topology"), *subcommands("lab")}
    assert names - {word for _, _, words in COMMANDS for word in words} == set()


def test_batch_scripts_are_shell_scripts():
    scripts = [block.text for page in PAGES for block in examples.blocks(page.read_text()) if block.language == "slurm"]
    assert scripts
    for script in scripts:
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_block_that_is_not_run_says_why():
    blocks = [block for page in PAGES for block in examples.blocks(page.read_text()) if block.note == "not run"]
    assert blocks
    assert [block.text for block in blocks if len(block.argument) <= 5] == []


def test_a_page_that_shows_another_output_fails(tmp_path):
    page = "```console\n$ quadrille one\nright\n```\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n"
    wrong = list(examples.run_page(page, tmp_path, lambda _: (0, "wrong\n", "")))
    assert [text.splitlines()[0] for text in wrong] == ["one printed", "the Python block printed"]
    assert list(examples.run_page("```sh\nquadrille one\n```\n", tmp_path, lambda _: (2, "", "no"))) == [
        "one ended with 2: no"
    ]
