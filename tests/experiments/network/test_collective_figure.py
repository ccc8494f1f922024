import pytest

from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_figure import sizes_figure
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.topologies.find_machine import find_machine
from tests.support.quadrille import called

COMMAND = ["collective", "all-reduce", "--machine", "h100-node", "--bytes", "16MiB"]


@pytest.fixture(scope="module")
def predictions():
    """All-reduces of three sizes on a node of H100."""
    machine = find_machine("h100-node", (), 8)
    questions = [CollectiveQuestion(kind="all_reduce", bytes=4**power, gpus=8, group=8) for power in (8, 12, 15)]
    return [predict_collective(question, machine) for question in questions]


def test_each_prediction_is_a_mark_of_its_algorithm_and_the_asked_one_is_circled(predictions):
    figure = sizes_figure(predictions, predictions[1])
    for axes, amounts in zip(
        figure.axes, ([p.seconds for p in predictions], [p.bus_bandwidth for p in predictions]), strict=True
    ):
        line, *of_algorithms, circle = axes.lines
        assert list(line.get_xdata()) == [4**8, 4**12, 4**15]
        assert list(line.get_ydata()) == pytest.approx(amounts)
        marked = {mark.get_label(): len(mark.get_xdata()) for mark in of_algorithms}
        assert sum(marked.values()) == len(predictions)
        assert set(marked) == {prediction.algorithm for prediction in predictions}
        assert (list(circle.get_xdata()), list(circle.get_ydata())) == ([4**12], [amounts[1]])
        assert all(tick.get_text().endswith("iB") for tick in axes.get_xticklabels())
    assert "8 GPUs of h100-node" in figure.get_suptitle()


def test_collective_draws_and_says_the_same_as_without(capsys, tmp_path):
    def lines(*more):
        return [line for line in called(capsys, *COMMAND, *more).out.splitlines() if "events" not in line]

    assert lines("--plot", tmp_path / "sizes.svg") == lines()
    assert "asked for: 16 MiB" in (tmp_path / "sizes.svg").read_text()


def test_a_barrier_has_no_figure(capsys):
    ended = called(capsys, "collective", "barrier", "--machine", "h100-node", "--plot", "sizes.svg")
    assert ended.status == 2
    assert "has no size to vary" in ended.line
