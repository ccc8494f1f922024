"""Every lowered collective, executed step by step on small lists."""

from math import ceil, log2

import pytest

from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.lowering import SETS, lower
from quadrille.algorithms.collectives.run_length_programs import IDLE

SIZES = range(1, 14)


def nodes_of(members: int) -> list[int]:
    """Every number of members that a node may have."""
    return [size for size in range(1, members + 1) if members % size == 0]


def pieces_of(run, pieces):
    """The pieces of a step in the order of the message."""
    return None if run is None else [(run.first + j * run.spacing) % pieces for j in range(run.count)]


def carry_out(lowered: Lowered, buffers: list[list[int | None]]) -> list[list[int | None]]:
    """All members in lockstep; each buffer holds one number (or None) per piece."""
    programs = [[lowered.step(member, s) for s in range(lowered.steps)] for member in range(lowered.members)]
    for s in range(lowered.steps):
        posted = {}
        for member, program in enumerate(programs):
            step = program[s]
            if step.send is not None:
                pieces = pieces_of(step.send, lowered.pieces)
                posted[member, step.send_to] = (pieces, [buffers[member][piece] for piece in pieces])
        for member, program in enumerate(programs):
            step = program[s]
            if step.receive is None:
                continue
            pieces = pieces_of(step.receive, lowered.pieces)
            sent, values = posted.pop((step.receive_from, member))
            assert sent == pieces
            for piece, value in zip(pieces, values, strict=True):
                assert value is not None, "a piece is passed on before it is there"
                buffers[member][piece] = buffers[member][piece] + value if step.reduce else value
        assert not posted, "what is sent is received in the same step"
    return buffers


def check_gather(lowered):
    """At the start member i holds piece i, at the end each holds all."""
    start = [[i if i == piece else None for piece in range(lowered.members)] for i in range(lowered.members)]
    assert carry_out(lowered, start) == [list(range(lowered.members))] * lowered.members


def summands(lowered):
    """A different power of ten for each member: a sum tells who is in it, and how often."""
    return [[10**i * (piece + 1) for piece in range(lowered.pieces)] for i in range(lowered.members)]


def sums(lowered):
    ones = sum(10**i for i in range(lowered.members))
    return [ones * (piece + 1) for piece in range(lowered.pieces)]


def check_scatter(lowered):
    end = carry_out(lowered, summands(lowered))
    assert [end[i][i] for i in range(lowered.members)] == sums(lowered)


def check_all_reduce(lowered):
    assert carry_out(lowered, summands(lowered)) == [sums(lowered)] * lowered.members


def check_broadcast(lowered, root):
    start = [[piece if i == root else None for piece in range(lowered.pieces)] for i in range(lowered.members)]
    assert carry_out(lowered, start) == [list(range(lowered.pieces))] * lowered.members


def check_reduce(lowered, root):
    assert carry_out(lowered, summands(lowered))[root] == sums(lowered)


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "doubling"])
def test_an_all_gather_leaves_every_piece_everywhere(members, algorithm):
    check_gather(lower("all_gather", algorithm, members))


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "halving"])
def test_a_reduce_scatter_leaves_each_sum_at_its_member(members, algorithm):
    check_scatter(lower("reduce_scatter", algorithm, members))


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "doubling", "halving_doubling", "double_binary_tree"])
def test_an_all_reduce_leaves_the_sum_everywhere(members, algorithm):
    for size in (0, 2 << 20, 6 << 20, 14 << 20):
        check_all_reduce(lower("all_reduce", algorithm, members, size_bytes=size))


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["binomial", "pipelined", "double_binary_tree"])
@pytest.mark.parametrize("size", [0, 5 << 20, 16 << 20])
def test_a_broadcast_reaches_everyone_from_any_root_and_a_reduce_sums_there(members, algorithm, size):
    for root in range(members):
        check_broadcast(lower("broadcast", algorithm, members, root=root, size_bytes=size), root)
        check_reduce(lower("reduce", algorithm, members, root=root, size_bytes=size), root)


@pytest.mark.parametrize("members", [4, 6, 8, 9, 12])
def test_a_hierarchy_does_the_same_whatever_a_node_holds(members):
    for per_node in nodes_of(members):
        given = {"per_node": per_node, "size_bytes": 5 * per_node << 20}
        check_gather(lower("all_gather", "hierarchical", members, **given))
        check_scatter(lower("reduce_scatter", "hierarchical", members, **given))
        check_all_reduce(lower("all_reduce", "hierarchical", members, **given))
        for root in range(members):
            check_broadcast(lower("broadcast", "hierarchical", members, root=root, **given), root)
            check_reduce(lower("reduce", "hierarchical", members, root=root, **given), root)


@pytest.mark.parametrize(("members", "per_node"), [(7, 2), (8, 1), (8, 8), (8, 3), (1, 1)])
def test_a_hierarchy_without_several_equal_nodes_is_a_ring_and_says_so(members, per_node):
    assert lower("all_reduce", "hierarchical", members, per_node=per_node).algorithm == "ring"
    assert lower("broadcast", "hierarchical", members, per_node=per_node).algorithm == "pipelined"


@pytest.mark.parametrize(("members", "per_node"), [(12, 4), (8, 2), (15, 5)])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"])
def test_a_hierarchy_leaves_its_node_along_the_rail_only_and_with_least_bytes(kind, members, per_node):
    lowered = lower(kind, "hierarchical", members, per_node=per_node, root=3, size_bytes=6 * per_node << 20)
    nodes, block = members // per_node, lowered.pieces // per_node
    least = {"all_gather": nodes - 1, "reduce_scatter": nodes - 1, "all_reduce": 2 * (nodes - 1)}.get(kind, block)
    for member in range(members):
        left = 0
        for step in lowered.program(member):
            if step.send_to is not None and step.send_to // per_node != member // per_node:
                assert step.send_to % per_node == member % per_node
                left += step.send.count
        assert left <= least


@pytest.mark.parametrize("members", range(2, 40))
def test_two_trees_share_the_work(members):
    """Whoever is inner in one tree is a leaf in the other, so nobody has more than two children or sends all twice."""
    lowered = lower("broadcast", "double_binary_tree", members, size_bytes=16 << 20)
    assert lowered.pieces == (2 if members == 2 else 16)
    sent = [sum(step.send.count for step in lowered.program(i) if step.send) for i in range(members)]
    assert max(sent) <= lowered.pieces
    assert sum(sent) == lowered.pieces * (members - 1)
    assert lowered.steps <= lowered.pieces + 4 * ceil(log2(members)) + 2


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_the_depth_of_a_double_tree_grows_with_the_logarithm(kind):
    steps = [lower(kind, "double_binary_tree", members, size_bytes=0).steps for members in (64, 1024, 16384)]
    assert steps[1] - steps[0] == steps[2] - steps[1] <= 2 * 4 * 2


@pytest.mark.parametrize("members", SIZES)
def test_a_pairwise_exchange_meets_every_pair_once(members):
    lowered = lower("all_to_all", "pairwise", members)
    for s in range(lowered.steps):
        for member in range(members):
            step = lowered.step(member, s)
            assert lowered.step(step.send_to, s).receive_from == member
            assert (step.send.first, step.receive.first) == (step.send_to, step.receive_from)
    assert all(
        sorted(lowered.step(member, s).send_to for s in range(lowered.steps))
        == [i for i in range(members) if i != member]
        for member in range(members)
    )


@pytest.mark.parametrize("members", range(2, 14))
@pytest.mark.parametrize("set_name", SETS)
def test_no_member_sends_to_itself_and_every_send_has_its_receive(members, set_name):
    for kind, algorithm in SETS[set_name].items():
        lowered = lower(kind, algorithm, members, root=members - 1, size_bytes=4 << 20)
        assert lowered.steps > 0
        for s in range(lowered.steps):
            sends = {(i, lowered.step(i, s).send_to) for i in range(members) if lowered.step(i, s).send is not None}
            receives = {
                (lowered.step(i, s).receive_from, i) for i in range(members) if lowered.step(i, s).receive is not None
            }
            assert sends == receives
            assert all(one != other for one, other in sends)
            assert any(lowered.step(i, s) != IDLE for i in range(members))


@pytest.mark.parametrize("members", range(2, 14))
def test_doubling_takes_the_logarithm_of_the_steps_of_a_ring(members):
    assert lower("all_gather", "ring", members).steps == members - 1
    assert lower("all_gather", "doubling", members).steps == ceil(log2(members))


def spelled_out(steps, pieces):
    return [
        (one.send_to, pieces_of(one.send, pieces), one.receive_from, pieces_of(one.receive, pieces), one.reduce)
        for one in steps
    ]


def check_runs(lowered):
    runs = lowered.runs()
    assert (runs.members, runs.pieces) == (lowered.members, lowered.pieces)
    flat = runs.unrolled()
    assert (flat.cycle == 1).all()
    for member in range(lowered.members):
        steps = spelled_out(lowered.program(member), lowered.pieces)
        assert spelled_out(runs.program(member), lowered.pieces) == steps
        assert spelled_out(flat.program(member), lowered.pieces) == steps


@pytest.mark.parametrize("members", [*range(1, 18), 20, 24, 27, 31, 32, 33])
@pytest.mark.parametrize("set_name", SETS)
def test_runs_are_the_programs_of_all_members(members, set_name):
    for kind, algorithm in SETS[set_name].items():
        for per_node in nodes_of(members) if algorithm == "hierarchical" else [1]:
            check_runs(lower(kind, algorithm, members, per_node=per_node))


@pytest.mark.parametrize("members", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
@pytest.mark.parametrize("set_name", SETS)
def test_runs_from_any_root_in_any_number_of_pieces(members, chunks, set_name):
    for kind in ("broadcast", "reduce"):
        algorithm = SETS[set_name][kind]
        for root in range(members):
            for per_node in nodes_of(members) if algorithm == "hierarchical" else [1]:
                size = (chunks << 20) * (per_node if algorithm == "hierarchical" else 2)
                check_runs(lower(kind, algorithm, members, root=root, size_bytes=size, per_node=per_node))
