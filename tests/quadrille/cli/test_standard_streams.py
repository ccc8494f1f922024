"""The program's streams: control characters of files are text, and a stream that fails is one line and status 1."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from functools import cache

import pytest

from quadrille.algorithms.errors import RunError
from quadrille.cli.standard_streams import ASCII, PlainStream, visible
from quadrille.runtime.host.console import ERASE, erase_line
from tests.support.quadrille import ROOT

PRINTING = (
    "--help",
    "--version",
    "machines",
    "topologies",
    "completion bash",
    "schedule --matmul 64,64,64 --grid z=2",
    "simulate --matmul 64,64,64 --grid z=2 --machine perlmutter --verbose",
    "simulate --matmul 64,64,64 --grid z=2 --machine perlmutter --json -",
    "collective all-reduce --bytes 1MiB --machine perlmutter --gpus 8",
)


CLOSED_AND_FULL = [(">&-", "it is closed"), (">/dev/full", "No space left on device")]


def ended(words, redirection="", **variables):
    """What the program wrote on stdout and stderr, and its exit status, behind a shell's redirection."""
    line = f"'{sys.executable}' -P -m quadrille {words} {redirection}"
    environment = {**os.environ, **variables}
    return subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, env=environment, check=False)


@cache
def printed(words):
    """How the program ends without a redirection, which several tests look at."""
    return ended(words)


@pytest.mark.parametrize(
    ("words", "redirection", "reason"),
    [(PRINTING[0], *CLOSED_AND_FULL[1])]
    + [(words, *CLOSED_AND_FULL[number % 2]) for number, words in enumerate(PRINTING)],
)
def test_a_stdout_that_cannot_be_written_is_one_line_and_status_1(words, redirection, reason):
    process = ended(words, redirection)
    assert process.stderr.decode() == f"quadrille: stdout cannot be written: {reason}\n"
    assert process.returncode == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_cannot_be_written_changes_no_status(redirection):
    assert ended("machines", redirection).returncode == 0
    assert ended("nonsense", redirection).returncode == 2


@pytest.mark.parametrize("words", PRINTING[2:])
def test_a_terminal_without_utf8_gets_ascii_and_all_lines(words):
    plain = printed(words)
    ascii_only = ended(words, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (plain.returncode, ascii_only.returncode) == (0, 0) and ascii_only.stderr == b""
    assert ascii_only.stdout.isascii()
    assert b"?" not in ascii_only.stdout or b"?" in plain.stdout


def test_every_character_that_help_and_tables_print_has_an_ascii_form():
    text = "".join(printed(words).stdout.decode() for words in PRINTING)
    foreign = {character for character in text if not character.isascii()}
    assert foreign <= ASCII.keys() | set("üéö")  # names of people in sources


MACHINE = """
schema = "quadrille/machine/2"
name = "evil\\u001b[2J\\u009b31m\\u202eeman"
[topology]
family = "star"
hosts = 2
bandwidth_bytes_per_second = 1e9
latency_seconds = 1e-6
[device]
peak_flops_per_second = { float32 = 1e11 }
memory_bytes_per_second = 1e10
memory_bytes = 1e9
overhead_seconds = 1e-6
"""


def test_a_name_in_a_file_commands_no_terminal(tmp_path):
    (tmp_path / "evil.toml").write_text(MACHINE)
    words = f"simulate --matmul 64,64,64 --grid z=2 --machine '{tmp_path}/evil.toml'"
    for more in ("", "--json -", "--verbose"):
        process = ended(f"{words} {more}")
        assert process.returncode == 0, process.stderr
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", process.stdout.decode())
    assert json.loads(ended(f"{words} --json -").stdout)["machine"]["name"].startswith("evil\x1b[2J\x9b31m\u202e")
    refused = ended("simulate --matmul 64,64,64 --machine $(printf 'a\\033[31mb')")
    assert b"\x1b" not in refused.stderr and b"a\\x1b[31mb" in refused.stderr


def test_what_is_no_control_character_stays_as_it_is():
    text = "tab\tnew line\n × γ │ é 漢 \N{GRINNING FACE}"
    assert visible(text) == text
    assert visible("\r\x07") == "\\r\\x07"


def test_the_program_s_own_control_characters_reach_the_terminal_and_those_of_a_text_do_not():
    content = io.BytesIO()
    stream = PlainStream(content, "utf-8")
    erase_line(stream)
    stream.write(f"a name{ERASE}")
    stream.flush()
    assert content.getvalue().decode() == ERASE + "a name" + ERASE.encode("unicode_escape").decode()


REMARK = """
from quadrille.cli import standard_streams
from quadrille.runtime.host.console import remark
standard_streams.prepare()
remark("a name\x1b[2J")
"""


def test_a_remark_takes_the_place_of_a_line_of_progress_on_a_terminal():
    ours, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", REMARK], stderr=terminal, cwd=ROOT, env=environment, check=True)
    os.close(terminal)
    drawn = os.read(ours, 4096).decode()
    os.close(ours)
    assert drawn == f"{ERASE}quadrille: a name\\x1b[2J\r\n"


class Full(io.RawIOBase):
    """A device without space."""

    def writable(self):
        return True

    def write(self, _content):
        raise OSError(28, "No space left on device")


def test_after_a_failure_every_write_fails(monkeypatch):
    stream = PlainStream(io.BufferedWriter(Full()), "utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    for _ in range(2):
        with pytest.raises(RunError, match="No space left"):
            stream.write("text")
            stream.flush()
    stream.fault = ""
