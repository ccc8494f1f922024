import pytest

from tests.support.quadrille import called

PREDICT = ["simulate", "--matmul", "256,256,256", "--machine", "perlmutter", "--quiet"]


@pytest.fixture
def explained(capsys, tmp_path):
    """A function that explains a file with the figure of its links, and returns the end and the figure."""

    def explain(*command):
        path, figure = tmp_path / "answer.json", tmp_path / "links.svg"
        assert called(capsys, *command, "--json", path).status == 0
        ended = called(capsys, "explain", path, "--plot-of", "links", "--plot", figure)
        return ended, figure.read_text() if figure.exists() else ""

    return explain


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([*PREDICT, "--grid", "z=4"], "m=256 k=256 n=256"),
        (["collective", "all-reduce", "--machine", "perlmutter", "--gpus", "8", "--bytes", "1MiB"], "on perlmutter"),
    ],
)
def test_the_links_of_a_file_are_drawn_on_the_network_of_its_machine(explained, command, words):
    ended, figure = explained(*command)
    assert ended.status == 0
    for text in ("Which links are used most?", "router", words, "utilisation of the busier direction"):
        assert text in figure.replace("\n", " ")


def test_a_record_of_one_rank_has_no_links(explained):
    ended, figure = explained(*PREDICT, "--grid", "x=1")
    assert ended.status == 2
    assert "names no links" in ended.line
    assert not figure
