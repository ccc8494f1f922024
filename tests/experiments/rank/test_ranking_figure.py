import csv
import io

import pytest

from quadrille.experiments.rank.ranking_figure import QUESTION, ranking_csv, ranking_figure
from tests.support.quadrille import called

MODEL = "layers=2,hidden=256,heads=4,sequence=128,vocabulary=1024"
RANK = f"rank --gpt {MODEL} --batch 8 --gpus 4 --machine perlmutter --top 4"


@pytest.fixture(scope="module")
def answer():
    """The ranking of a small model."""
    from quadrille.cli.parsing.flags import RankFlags
    from quadrille.cli.parsing.machines import MachineFlags
    from quadrille.cli.parsing.ranking import parse_question, parse_space
    from quadrille.experiments.rank.rank import ranking

    words = RANK.split()
    flags = dict(zip([word.removeprefix("--") for word in words[1::2]], words[2::2], strict=True))
    machine = MachineFlags(machine=flags.pop("machine"))
    rank_flags = RankFlags(**flags)
    return ranking(parse_question(rank_flags, machine), parse_space(rank_flags, has_experts=False))


def test_every_simulated_entry_is_a_mark_and_no_mark_beats_the_front(answer):
    axes = ranking_figure(answer).axes[0]
    marks = [point for line in axes.lines for point in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert sorted(marks) == sorted((entry.memory_bytes, entry.seconds) for entry in answer.simulated)
    front = next(line for line in axes.lines if line.get_label() == "Pareto front")
    points = list(zip(front.get_xdata(), front.get_ydata(), strict=True))
    for memory, seconds in points:
        assert not any(m <= memory and s <= seconds and (m, s) != (memory, seconds) for m, s in marks)
    assert min(seconds for _, seconds in points) == answer.simulated[0].seconds


def test_the_title_has_model_machine_and_gpus(answer):
    title = ranking_figure(answer).get_suptitle()
    assert title.startswith(QUESTION)
    assert "4 GPUs of perlmutter" in title


def test_every_mark_has_its_place_as_number_and_the_front_is_named_in_the_legend(answer):
    figure = ranking_figure(answer)
    numbers = {text.xy: text.get_text() for text in figure.axes[0].texts}
    places = {(entry.memory_bytes, entry.seconds): str(place) for place, entry in enumerate(answer.simulated, 1)}
    assert numbers == places
    front = next(line for line in figure.axes[0].lines if line.get_label() == "Pareto front")
    points = zip(front.get_xdata(), front.get_ydata(), strict=True)
    (legend,) = figure.legends
    named = dict(text.get_text().split(": ", 1) for text in legend.get_texts() if ": " in text.get_text())
    assert set(named) == {places[point] for point in points}
    assert len(set(named.values())) == len(named)
    best = answer.simulated[0]
    assert all(f"{axis}={length}" in named["1"] for axis, length in best.grid.items() if length > 1)


def test_no_text_is_wider_than_the_figure(answer):
    figure = ranking_figure(answer)
    canvas = figure.canvas
    canvas.draw()
    width = figure.get_figwidth() * figure.dpi
    boxes = [text.get_window_extent() for text in [*figure.axes[0].texts, *figure.legends[0].get_texts()]]
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)


def test_the_csv_has_a_line_for_each_entry_with_its_numbers(answer):
    rows = list(csv.DictReader(io.StringIO(ranking_csv(answer))))
    assert set(rows[0]) == {"place", *(column for row in answer.rows() for column in row)}
    assert [float(row["seconds"]) for row in rows] == [entry.seconds for entry in answer.simulated]
    assert [int(row["memory_bytes"]) for row in rows] == [entry.memory_bytes for entry in answer.simulated]
    assert [row["place"] for row in rows] == [str(place) for place in range(1, len(rows) + 1)]


def test_csv_on_stdout_has_nothing_else(capsys, tmp_path):
    ended = called(capsys, *RANK.split(), "--csv", "-", "--plot", str(tmp_path / "rank.svg"))
    assert ended.status == 0
    assert ended.out.startswith("place,grid,")
    assert len(list(csv.reader(io.StringIO(ended.out)))) == 1 + 4
    assert QUESTION in (tmp_path / "rank.svg").read_text().replace("&#x27;", "'")
