"""`quadrille collective`: hand formulas, what is said beside the time, and bad input."""

import json

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.lowering import SETS
from quadrille.algorithms.errors import InputError
from quadrille.cli.main import main
from quadrille.cli.parsing.flags import CollectiveFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.predict.collectives_choice import chosen_collectives
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.topologies.find_machine import find_machine
from tests.support.by_words import collective_predicted
from tests.support.quadrille import called
from tests.support.toy_machines import collective as collective_schedule
from tests.support.toy_machines import leaf_spine

GIB = 1 << 30


def ring_all_reduce_by_hand(ranks):
    """W1: every step is as late as the slowest, between leaves from 64 ranks on."""
    return 2 * (ranks - 1) * (GIB / ranks / 50e9 + 4e-6)


def predicted(machine="bench-1to1", **given):
    different = {name: given.pop(name) for name in ("settings", "routing", "fail", "degrade", "slow") if name in given}
    flags = CollectiveFlags(**({"kind": "all-reduce", "bytes": "1GiB"} | given))
    return collective_predicted(flags, MachineFlags(machine=machine, **different), json="/dev/null")


@pytest.mark.parametrize("gpus", [64, 100, 256, 1000, 1024, 4096, 10_000, 16_384])
def test_w1_is_the_formula_by_hand(gpus):
    answer = predicted(gpus=str(gpus), shards="even")
    assert answer.seconds == pytest.approx(ring_all_reduce_by_hand(gpus), rel=1e-9)


@pytest.mark.parametrize("gpus", [100, 1000])
def test_exact_shards_of_w1_are_within_a_byte_of_the_formula(gpus):
    answer = predicted(gpus=str(gpus))
    assert answer.shards == "exact"
    assert 0 < answer.seconds / ring_all_reduce_by_hand(gpus) - 1 < 1e-6


@pytest.mark.parametrize("gpus", [512, 1024, 4096, 16_384])
def test_w2_is_the_formula_by_hand(gpus):
    answer = predicted(
        "bench-2to1", kind="all-gather", gpus=str(gpus), group="16", stride=str(gpus // 16), concurrent="all"
    )
    assert answer.seconds == pytest.approx(15 * ((1 << 26) / 25e9 + 4e-6), rel=1e-9)
    best = answer.bottlenecks[0]
    assert (best.link, best.alike) == ("leaf:0>spine:0", gpus // 32)
    assert best.utilisation == pytest.approx(15 * (1 << 26) / 25e9 / answer.seconds)


def test_w2_that_fits_its_links_does_not_contend():
    answer = predicted("bench-2to1", kind="all-gather", gpus="64", group="16", stride="4", concurrent="all")
    assert answer.seconds == pytest.approx(15 * ((1 << 26) / 50e9 + 4e-6), rel=1e-9)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "broadcast", "reduce", "all-to-all"])
@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:hierarchical", "own:double_binary_tree"])
def test_every_granularity_of_simulation_gives_the_same(kind, collectives):
    machine = find_machine("perlmutter", gpus=32)
    seconds = [
        predict_collective(
            CollectiveQuestion(
                kind=kind.replace("-", "_"),
                bytes=1 << 22,
                gpus=32,
                group=8,
                stride=2,
                concurrent="all",
                choices=parse_choices(collectives),
                options=SimulationOptions(fold=fold, fold_time=fold_time),
            ),
            machine,
        ).seconds
        for fold in (True, False)
        for fold_time in (True, False)
    ]
    assert seconds == pytest.approx([seconds[0]] * 4, rel=1e-9)


def test_a_slow_nic_breaks_the_symmetry_and_is_named():
    answer = predicted(gpus="100", degrade=["gpu:7-leaf:0=0.5"], shards="even")
    assert not answer.folded
    assert "gpu:7" in answer.not_folded_reason
    slowest_step = GIB / 100 / 25e9 + 2e-6
    assert answer.seconds == pytest.approx(198 * slowest_step, rel=1e-9)


def test_bus_bandwidth_counts_what_a_link_carries():
    answer = predicted(gpus="64")
    assert answer.algorithm_bandwidth == GIB / answer.seconds
    assert answer.bus_bandwidth == pytest.approx(answer.algorithm_bandwidth * 2 * 63 / 64)
    assert [bus_factor(kind, 4) for kind in ("reduce_scatter", "all_to_all", "reduce")] == [0.75, 0.75, 1]


def test_a_group_of_one_moves_nothing(capsys):
    assert (
        main(["collective", "all-gather", "--bytes", "1MiB", "--group", "1", "--machine", "perlmutter", "--gpus", "8"])
        == 0
    )
    captured = capsys.readouterr()
    assert "0 s" in captured.out
    assert "sends nothing" in captured.err


def test_a_barrier_takes_latencies_only():
    """In each of six rounds some rank tells one under another leaf, and has heard of those before."""
    answer = predicted(kind="barrier", bytes="", gpus="64")
    assert answer.bytes == 0
    assert answer.seconds == pytest.approx(6 * 4e-6)
    assert answer.bus_bandwidth is None


def test_machines_may_be_modelled_past_their_size(capsys):
    answer = predicted("perlmutter", kind="barrier", bytes="", gpus="8192")
    assert answer.gpus == 8192
    assert (
        "perlmutter has 7,168 GPUs: predicted as a larger machine of the same kind with 8,192"
        in capsys.readouterr().err
    )


def test_the_json_has_what_the_issue_names(tmp_path):
    path = tmp_path / "answer.json"
    words = ["collective", "all_gather", "--bytes", "64MiB", "--gpus", "64", "--group", "16", "--stride", "4"]
    assert main([*words, "--concurrent", "all", "--machine", "bench-2to1", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["schema"] == "quadrille/collective/1"
    named = "seconds algorithm_bandwidth bus_bandwidth bottlenecks events classes wall_seconds peak_memory_bytes"
    assert set(named.split()) <= set(found)
    assert isinstance(found["classes"], int)
    assert set(found["bottlenecks"][0]) == {"link", "alike", "bytes", "utilisation", "busy_s"}
    assert found["peak_memory_bytes"] > 1 << 20
    assert 0 < found["wall_seconds"] < 60


STAR = "star:hosts=4,bandwidth=1e9,latency=1e-6"


def test_a_topology_alone_is_enough(tmp_path):
    answer = predicted(STAR, bytes="1MiB", settings=["topology.bandwidth_bytes_per_second=x2"])
    assert (answer.machine, answer.gpus) == (STAR, 4)
    assert answer.seconds == pytest.approx(6 * ((1 << 18) / 2e9 + 2e-6), rel=1e-9)
    path = tmp_path / "net.json"
    assert main(["topology", "show", STAR, "--json", str(path)]) == 0
    assert predicted(str(path), bytes="1MiB").seconds == predicted(STAR, bytes="1MiB").seconds


def test_where_something_is_computed_a_topology_is_not_enough(tmp_path, capsys):
    path = tmp_path / "net.json"
    assert main(["topology", "show", STAR, "--json", str(path)]) == 0
    capsys.readouterr()
    for name in (STAR, str(path)):
        ended = called(capsys, "simulate", "--matmul", "8,8,8", "--machine", name)
        assert ended.status == 2 and "is a topology alone, enough for collective, flows" in ended.line


def test_nccl_on_a_machine_that_names_no_gpu_says_what_is_taken(capsys):
    predicted(STAR, bytes="1MiB", collectives="nccl")
    assert "names no kind of GPU: NCCL is modelled as on A100" in capsys.readouterr().err


def test_routing_is_recorded_in_full():
    assert predicted(STAR, bytes="1MiB", routing="ecmp").routing == "ecmp:0"


def test_channels_are_those_that_nccl_takes_and_paths_those_that_differ():
    answer = predicted("perlmutter", gpus="64", collectives="nccl:ring:Simple")
    assert (answer.protocol, answer.channels) == ("Simple", 8)
    assert answer.different_paths == 4  # one for each NIC of a node
    own = predicted("perlmutter", gpus="64", channels="3")
    assert (own.protocol, own.channels, own.different_paths) == (None, 3, 3)


def test_the_group_is_all_that_the_stride_reaches():
    assert [predicted("perlmutter", gpus="6", stride="4", concurrent=word).group for word in ("one",)] == [2]
    assert predicted("perlmutter", gpus="6", stride="3", concurrent="all").group == 2


@pytest.mark.parametrize("gpus", [64, 1000])
def test_a_links_time_in_use_is_at_least_what_its_bytes_take(gpus):
    answer = predicted(gpus=str(gpus), shards="even", degrade=["gpu:7-leaf:0=0.5"])
    assert answer.bottlenecks
    for one in answer.bottlenecks:
        assert one.utilisation * answer.seconds <= one.busy_s * (1 + 1e-9) and one.busy_s <= answer.seconds


@pytest.mark.parametrize(("kind", "size"), [("all-reduce", "1KiB"), ("all-reduce", "1GiB"), ("broadcast", "16MiB")])
def test_auto_is_the_fastest_of_our_own_and_says_what_the_others_take(kind, size):
    auto = predicted(kind=kind, bytes=size, gpus="64", collectives="auto")
    every = [f"own:{name}{pieces}" for name in SETS for pieces in ("", ":256KiB", ":4096KiB")]
    others = {one: predicted(kind=kind, bytes=size, gpus="64", collectives=one).seconds for one in every}
    assert auto.seconds == pytest.approx(min(others.values()), rel=1e-9)
    assert auto.seconds == pytest.approx(others[auto.collectives], rel=1e-9)
    assert "others take longer: own:" in auto.why


def test_auto_chooses_what_a_schedule_of_the_same_collective_is_given():
    for size in (1 << 12, 16 << 20):
        (found,) = chosen_collectives(collective_schedule("broadcast", 8, size), leaf_spine(2, 4), [0] * 8)
        asked = CollectiveQuestion(
            kind="broadcast", bytes=size, gpus=8, group=8, item_bytes=4, choices=parse_choices("auto"), shards="exact"
        )
        made = predict_collective(asked, leaf_spine(2, 4))
        assert made.question.choices == found.ranked[0].choices
        assert made.seconds == pytest.approx(found.ranked[0].seconds, rel=1e-6)


def test_a_group_of_one_has_nothing_to_choose():
    answer = predicted(gpus="1", collectives="auto")
    assert answer.seconds == 0 and "sends nothing" in answer.why and "take longer" not in answer.why


def test_nccl_names_what_it_chose():
    answer = predicted("selene", gpus="64", collectives="nccl")
    assert answer.algorithm.startswith("nccl (")
    assert "NCCL predicts" in answer.why
    assert "(45.3 ms)" in predicted("selene", gpus="64", bytes="4GiB", collectives="nccl").why
    held = predicted("selene", gpus="64", collectives="nccl:ring:Simple")
    assert held.algorithm.startswith("nccl (ring, Simple")


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "broadcast", "reduce"])
def test_nccl_never_beats_the_nics_it_goes_through(kind):
    answer = predicted("selene", kind=kind, gpus="32", collectives="nccl")
    assert answer.bus_bandwidth < 8 * 25e9 * (1 + 1e-9)


BAD = [
    ({"kind": "gather"}, "collective 'gather': accepted are all-gather"),
    ({"bytes": "0"}, "--bytes: size '0' is 0 bytes"),
    ({"bytes": "-5"}, "--bytes: size '-5' is not a number"),
    ({"bytes": "1e400"}, "too large"),
    ({"bytes": ""}, "--bytes is missing"),
    ({"kind": "barrier"}, "a barrier moves no bytes"),
    ({"gpus": "0"}, "--gpus '0': a whole number from 1"),
    ({"gpus": "64", "group": "12", "concurrent": "all"}, "must divide the number of GPUs"),
    ({"gpus": "64", "group": "64", "stride": "2", "concurrent": "all"}, "do not fall into such groups"),
    ({"gpus": "64", "stride": "100"}, "--stride 100: there are 64"),
    ({"gpus": "64", "concurrent": "some"}, "concurrent 'some'"),
    ({"gpus": "64", "collectives": "mpi"}, "collectives 'mpi'"),
    ({"gpus": "64", "root": "1"}, "all_reduce has no root"),
    ({"gpus": "64", "kind": "broadcast", "root": "64"}, "has roots 0 to 63"),
    ({"gpus": "64", "shards": "uneven"}, "shards 'uneven'"),
    ({"gpus": "64", "dtype": "int4"}, "dtype 'int4'"),
    ({"gpus": "64", "routing": "random"}, "routing 'random'"),
    ({"gpus": "64", "degrade": ["gpu:0>leaf:0=2"]}, "share above 0 and at most 1"),
    ({"gpus": "64", "fail": ["gpu:0>leaf:9"]}, "leaf:9"),
    ({"gpus": "64", "placement": "nowhere"}, "placement 'nowhere'"),
    ({"gpus": "64", "placement": "axes:x"}, "a collective has no axes; packed, scattered or a file"),
    ({"machine": "star:hosts=4"}, "topology star lacks bandwidth, latency"),
    (
        {"machine": "star:hosts=4,bandwidth=1,latency=0", "gpus": "5"},
        "--gpus 5: star:hosts=4,bandwidth=1,latency=0 has 4",
    ),
    ({"machine": "star:hosts=4,bandwidth=-1,latency=0"}, "-1: a number above 0 is needed"),
    ({"machine": "nothing.json"}, "nothing.json: cannot be read"),
    ({"gpus": "64", "kind": "broadcast", "channels": "2"}, "rings are laid in channels"),
    ({"gpus": "100000000000", "kind": "all-gather"}, "at most"),
    ({"gpus": "131072", "kind": "all-to-all"}, "transfers, each unlike the others"),
    ({"gpus": "64", "kind": "all-to-all", "collectives": "nccl:ring"}, "NCCL has no all_to_all by ring"),
    ({"gpus": "131072", "machine": "selene", "collectives": "nccl:tree"}, "trees over 131072 GPUs"),
    ({"machine": ""}, "machine is missing"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_bad_input_is_one_clear_line(given, said):
    with pytest.raises(InputError) as raised:
        predicted(**given)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_bad_input_ends_with_status_2(capsys):
    assert (
        main(
            [
                "collective",
                "all-reduce",
                "--bytes",
                "1GiB",
                "--gpus",
                "3",
                "--group",
                "2",
                "--concurrent",
                "all",
                "--machine",
                "perlmutter",
            ]
        )
        == 2
    )
    assert capsys.readouterr().err.count("\n") == 1


def test_a_cut_network_is_reported_as_such():
    with pytest.raises(InputError, match=r"gpu:0"):
        predicted(gpus="64", fail=["gpu:0-leaf:0", "gpu:0-nvswitch:0"])


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_an_all_to_all_of_fewer_bytes_than_ranks_ends(size):
    question = CollectiveQuestion(kind="all_to_all", bytes=size, gpus=8, group=8, shards="exact")
    assert predict_collective(question, find_machine("bench-2to1", gpus=8)).seconds > 0


def test_one_group_needs_only_its_own_gpus():
    question = CollectiveQuestion(kind="all_gather", bytes=6, gpus=64, group=6)
    assert question.groups().tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(InputError, match="needs 66 GPUs, and there are 64"):
        CollectiveQuestion(kind="all_gather", bytes=6, gpus=64, group=6, stride=13)
