import io

import pytest

from quadrille.cli.main import main
from quadrille.experiments.output import terminal_lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown_on_a_terminal(monkeypatch, columns, *words):
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", stream)
    assert main(list(words)) == 0
    monkeypatch.undo()
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("words", [["machines"], ["machines", "h100-superpod"]])
@pytest.mark.parametrize("columns", [60, 80])
def test_machines_fit_the_terminal_and_say_how_to_see_whole_lines(monkeypatch, words, columns):
    lines = shown_on_a_terminal(monkeypatch, columns, *words)
    whole = shown_on_a_terminal(monkeypatch, columns, *words, "--verbose")
    assert max(map(len, lines)) <= columns < max(map(len, whole))
    assert lines[-1] == "--verbose shows whole lines"
    assert [line.removesuffix("…") for line in lines[:-1]] == [
        line[: len(cut.removesuffix("…"))] for cut, line in zip(lines, whole, strict=False)
    ]


def test_a_pipe_gets_whole_lines(capsys):
    terminal_lines.print_lines("x" * 300, "see more")
    assert capsys.readouterr().out == "x" * 300 + "\n"


def test_a_text_that_fits_has_no_hint(monkeypatch):
    assert terminal_lines.shortened("short", 5, "see more") == "short"
