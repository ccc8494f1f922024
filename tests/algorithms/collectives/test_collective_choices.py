import pytest

from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices, with_placement
from quadrille.algorithms.collectives.lowering import CHUNK_BYTES, MOST_CHUNKS, SETS, chunks, lower
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid

NCCL = ["nccl", "nccl:ring", "nccl:tree", "nccl:ring:LL", "nccl:tree:LL128", "nccl:nvls:Simple", "nccl:pat"]


@pytest.mark.parametrize("text", [*(f"own:{name}" for name in SETS), "library", "library:vector", *NCCL])
def test_choices_are_read_back_from_what_they_print(text):
    assert str(parse_choices(text)) == text


def test_own_is_rings_and_auto_too_until_something_is_chosen():
    assert parse_choices("own") == parse_choices("own:ring") == Choices()
    assert parse_choices("auto") == Choices(auto=True) and str(parse_choices("auto")) == "own:ring"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "own:",
        "own:tree",
        "ring",
        "library:ring",
        "library:regular",
        "library:vector:",
        "auto:ring",
        "own:ring:LL",
        "nccl:",
        "nccl:chain",
        "nccl:ring:LL256",
        "nccl::LL",
        "nccl:nvls:LL",
        "nccl:ring:LL:16",
    ],
)
def test_other_words_are_refused_with_those_accepted(text):
    with pytest.raises(InputError) as refused:
        parse_choices(text)
    assert repr(text) in str(refused.value)
    for accepted in (
        "own",
        "library",
        "library:vector",
        "auto",
        *(f"own:{name}" for name in SETS),
        "nccl:ring|tree[:LL|LL128|Simple]",
    ):
        assert accepted in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("Own", "own:ring"),
        ("LIBRARY:Vector", "library:vector"),
        ("NCCL:Ring:simple", "nccl:ring:Simple"),
        ("rccl:TREE:ll128", "nccl:tree:LL128"),
        ("own:RING:64KiB", "own:ring:64KiB"),
        ("Default", "default"),
    ],
)
def test_upper_and_lower_case_do_not_matter(text, choice):
    assert str(parse_choices(text)) == choice


@pytest.mark.parametrize("set_name", SETS)
def test_a_record_says_which_algorithm_and_that_a_library_s_is_a_guess(set_name):
    own, library, vector = (
        Choices("own", set_name),
        Choices("library", set_name),
        Choices("library", set_name, calls="vector"),
    )
    for kind, algorithm in SETS[set_name].items():
        assert own.label(kind) == algorithm
        assert library.label(kind) == f"library (as {algorithm})"
        assert vector.label(kind) == f"library:vector (as {algorithm})"


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("members", [2, 3, 7])
def test_lowering_gives_the_algorithm_that_was_named(set_name, members):
    for kind, algorithm in SETS[set_name].items():
        lowered = lower(kind, algorithm, 2 * members, per_node=2)
        assert lowered.algorithm == algorithm
        assert lowered.members == 2 * members


def test_a_pipelined_buffer_goes_in_chunks_of_a_mebibyte_and_not_too_many():
    assert chunks(3, 0) == 1
    assert chunks(3, 5 * CHUNK_BYTES) == 5
    assert chunks(3, 10**12) == MOST_CHUNKS
    assert chunks(2, 5 * CHUNK_BYTES) == 1, "one hop has nothing to overlap"
    assert lower("broadcast", "pipelined", 3, size_bytes=5 * CHUNK_BYTES).pieces == 5
    assert lower("broadcast", "pipelined", 3, size_bytes=5 * CHUNK_BYTES, chunk_bytes=CHUNK_BYTES // 4).pieces == 20


@pytest.mark.parametrize("text", ["own:ring:256KiB", "own:double_binary_tree:65537B", "own:hierarchical", "library"])
def test_a_choice_is_read_as_it_is_written(text):
    assert str(parse_choices(text)) == text


@pytest.mark.parametrize("text", NCCL)
def test_what_only_predicts_is_refused_where_it_would_be_run(text):
    with pytest.raises(InputError, match=rf"'{text}'.*predicts and cannot be run; accepted are library, own:ring"):
        parse_choices(text).check_runnable()
    for other in ("own:hierarchical", "library", "library:vector", "auto"):
        parse_choices(other).check_runnable()


def test_nccl_in_a_schedule_is_said_to_be_predicted_as_our_rings_and_its_trees_are_refused():
    assert parse_choices("nccl").label("all_reduce") == "nccl (as ring)"
    for text in ("nccl", "nccl:ring", "library", "own:hierarchical"):
        parse_choices(text).check_schedulable()
    for text in ("nccl:tree", "nccl:ring:LL128"):
        with pytest.raises(InputError, match=rf"'{text}': a schedule's collectives are predicted as rings"):
            parse_choices(text).check_schedulable()


def test_a_hierarchy_knows_from_the_placement_what_shares_a_node_along_each_axis():
    grid = Grid(z=3, y=2, x=4)
    packed = with_placement(parse_choices("own:hierarchical"), grid, [rank // 8 for rank in range(24)])
    assert dict(packed.per_node) == {}, "x and y lie inside a node, z has one rank on each"
    halved = with_placement(parse_choices("own:hierarchical"), grid, [rank // 2 for rank in range(24)])
    assert dict(halved.per_node) == {"x": 2}
    assert halved.label("all_reduce", "x") == "hierarchical (2 to a node)"
    assert halved.label("all_reduce", "z") == "hierarchical (as ring)"
    assert halved.label("broadcast", "z") == "hierarchical (as pipelined)"
    assert halved.ranks_per_node("x") == 2
    assert halved.ranks_per_node("z") == 1
    assert str(halved) == "own:hierarchical"


@pytest.mark.parametrize(
    ("nodes", "shared"),
    [
        ([0, 0, 1, 1, 2, 2], 2),
        ([5, 5, 5, 9, 9, 9], 3),
        ([0, 0, 0, 0, 0, 0], 1),
        ([0, 1, 2, 3, 4, 5], 1),
        ([0, 0, 1, 1, 1, 1], 1),
        ([0, 0, 1, 1, 0, 0], 1),
        ([0, 0, 1, 2, 2, 2], 1),
        ([0, 0, 0, 0, 1, 1], 1),
        ([0, 1, 0, 1, 0, 1], 1),
    ],
)
def test_only_regular_neighbours_make_a_hierarchy(nodes, shared):
    assert with_placement(Choices("own", "hierarchical"), Grid(x=6), nodes).ranks_per_node("x") == shared


def test_one_irregular_group_spoils_its_axis_for_all():
    nodes = [0, 0, 1, 1, 2, 2, 3, 4]
    assert with_placement(Choices("own", "hierarchical"), Grid(z=2, x=4), nodes).ranks_per_node("x") == 1
