"""`quadrille check`: normal logs are normal, and a planted fault is among the first two causes."""

import json
import random
from dataclasses import replace

import msgspec
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.experiments.check.check import layout_of
from quadrille.experiments.check.check_figure import check_figure
from quadrille.experiments.check.checked_log import CheckedLog
from quadrille.experiments.check.explanations import Call, distance, explanations
from quadrille.experiments.import_.collective_logs import CollectiveLog
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults
from tests.support.quadrille import called

SIZES = [2**power for power in (12, 18, 22, 26, 30)]
NOISE = 0.03
"""Standard deviation of the logarithm of a measured time."""


def measured(name, gpus, kind, *, degrade=(), choices="", longer=0.0, seed=0):
    """Calls on a machine with a fault, with noise, beside those of the machine without it."""
    machine, noise = find_machine(name, (), gpus), random.Random(seed)
    faulty = with_faults(machine, degrade=degrade)
    for size in SIZES:
        question = CollectiveQuestion(kind=kind, bytes=size, gpus=gpus, group=gpus, item_bytes=4)
        held = replace(question, choices=parse_choices(choices)) if choices else question
        seconds = predict_collective(held, faulty).seconds + longer
        yield Call(question, seconds * noise.lognormvariate(0, NOISE), predict_collective(question, machine).seconds)


PLANTED = [
    ("NVLinks of one GPU at", 0.5, ("h100-superpod", 8, "all_reduce"), {"degrade": ["gpu:3-nvswitch:0=0.5"]}),
    ("NVLinks of one GPU at", 0.25, ("a100-node", 4, "all_gather"), {"degrade": ["gpu:1-nvswitch:0=0.25"]}),
    (
        "one network card of the last node at",
        0.4,
        ("h100-superpod", 16, "all_gather"),
        {"degrade": ["nic:8-leaf:0=0.4"]},
    ),
    (
        "one network card of the last node at",
        0.25,
        ("perlmutter", 8, "all_reduce"),
        {"degrade": ["nic:5-router:0=0.25"]},
    ),
    ("every network card at", 0.3, ("perlmutter", 8, "reduce_scatter"), {"degrade": ["nic:*-router:*=0.3"]}),
    ("ring with LL for", 1, ("perlmutter", 8, "all_reduce"), {"choices": "nccl:ring:LL"}),
    ("tree with Simple", 1, ("perlmutter", 8, "all_reduce"), {"choices": "nccl:tree:Simple"}),
    ("longer, whatever its size", 1, ("h200-node", 8, "reduce_scatter"), {"longer": 3e-4}),
]


@pytest.mark.parametrize(("cause", "share", "job", "fault"), PLANTED)
def test_a_planted_fault_is_among_the_first_two_causes(cause, share, job, fault):
    calls = list(measured(*job, **fault))
    found = explanations(calls, find_machine(job[0], (), job[1]), across=job[1] > 8 or job[0] == "perlmutter")
    place, words = next((place, one.cause) for place, one in enumerate(found) if cause in one.cause)
    assert place < 2, [one.cause for one in found]
    assert share == 1 or float(words.partition(cause)[2].split()[0]) == pytest.approx(share, rel=2 * NOISE + 0.02)
    assert found[0].distance < 3 * NOISE < distance(calls, [call.expected for call in calls])


def log_file(folder, calls):
    lines = [f"#  Rank {rank} Group 0 Pid 7 on a device {rank} [0x07] NVIDIA H100 80GB HBM3" for rank in range(8)]
    for call in calls:
        micros, size = 1e6 * call.measured, call.question.bytes
        rate = size / micros / 1e3
        times = f"{micros:.2f} {rate:.2f} {1.75 * rate:.2f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {times} {times}")
    path = folder / "all_reduce.log"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_normal_log_needs_no_explanation(tmp_path, capsys):
    path = log_file(tmp_path, measured("h100-node", 8, "all_reduce"))
    ending = called(capsys, "check", path, "--machine", "h100-node", "--json", str(tmp_path / "answer.json"))
    assert "from 1 MiB: as expected" in ending.out
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert [sizes["verdict"] for sizes in answer["by_size"]] == ["as expected", "as expected"]
    assert answer["explanations"] == [] and answer["devices"] == ["NVIDIA H100 80GB HBM3"]


def test_a_slow_link_is_named_with_the_flag_that_shows_it(tmp_path, capsys):
    path = log_file(tmp_path, measured("h100-node", 8, "all_reduce", degrade=["gpu:2-nvswitch:0=0.5"]))
    out = called(capsys, "check", path, "--machine", "h100-node").out
    share = float(out.partition("--degrade 'gpu:0-nvswitch:0=")[2].partition("'")[0])
    assert "from 1 MiB: slower" in out and share == pytest.approx(0.5, rel=0.1)


def test_the_figure_has_each_measured_time_beside_its_band(tmp_path, capsys):
    path = log_file(tmp_path, measured("h100-node", 8, "all_reduce", degrade=["gpu:2-nvswitch:0=0.5"]))
    words = ("check", path, "--machine", "h100-node", "--json", tmp_path / "answer.json")
    ending = called(capsys, *words, "--plot", tmp_path / "check.svg")
    assert ending.status == 0
    answer = msgspec.json.decode((tmp_path / "answer.json").read_bytes(), type=CheckedLog)
    rates, ratios = check_figure(answer).axes
    marks = {line.get_label(): line for line in rates.lines}
    assert list(marks) == ["all-reduce, expected", "all-reduce, measured"]
    bandwidths = [1.75 * row.bytes / row.measured_seconds for row in answer.rows]
    assert list(marks["all-reduce, measured"].get_ydata()) == pytest.approx(bandwidths)
    assert list(ratios.lines[0].get_ydata()) == pytest.approx([row.ratio for row in answer.rows])
    assert "8 ranks on 1 node, beside h100-node" in rates.figure.get_suptitle()
    assert called(capsys, *words[:4], "--plot", "check.gif").line.endswith("one of png, svg, pdf is needed")


@pytest.mark.parametrize(
    ("ranks", "nodes", "layout"),
    [
        (8, 1, (8, "packed")),
        (16, 2, (16, "packed")),
        (2, 2, (16, "packed:1")),
        (8, 2, (16, "packed:4")),
        (4, 1, (4, "packed")),
    ],
)
def test_ranks_lie_on_whole_nodes_or_on_a_part_of_each(ranks, nodes, layout):
    found = layout_of(CollectiveLog("nccl-tests", (), ranks, nodes), 8)
    assert (found.gpus, found.placement) == layout and (found.ranks, found.nodes) == (ranks, nodes)


@pytest.mark.parametrize(
    ("ranks", "nodes", "words"),
    [
        (9, 2, "the same number"),
        (18, 2, "from 1 to its 8 GPUs"),
        (16, 1, "16 ranks on one node"),
        (None, None, "--gpus N"),
    ],
)
def test_other_layouts_are_refused(ranks, nodes, words):
    with pytest.raises(InputError, match=words):
        layout_of(CollectiveLog("nccl-tests", (), ranks, nodes), 8)


def test_two_of_eight_gpus_of_each_node_have_the_time_of_their_cards():
    """An all-to-all of p ranks sends (p - 1) / p of a buffer, r / p of it to each rank of r others on another node."""
    machine = find_machine("selene", (), 16)
    question = layout_of(CollectiveLog("nccl-tests", (), 4, 2), 8).question("all_to_all", 2**30, 4)
    assert predict_collective(question, machine).seconds == pytest.approx(2 / 4 * 2**30 / 25e9, rel=0.02)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"HYBRID_TRANSFORMER model_parallel_NPU_group: 8\n", "workload of SimAI (for quadrille replay"),
        (b"<?xml version='1.0'?>\n<platform version='4.1'>", "network of SimGrid"),
        (b'{"nodes": [], "edges": []}', "node-link form"),
        (b'schema = "quadrille/machine/2"\n', "is a file of Quadrille"),
        (b"\x1f\x8b rest", "profiler's trace"),
        (b"torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64\n", "configuration of a job"),
        (b"SwitchName=leaf Nodes=node[1-4]\n", "describes a fabric"),
        (b"hello\n", "has no measured time"),
    ],
)
def test_another_file_is_refused_with_what_it_is(content, said, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    for words in (("check",), ("import", "machine", "--into", "-")):
        ending = called(capsys, *words, tmp_path / "file", "--machine", "h100-node")
        assert ending.status == 2 and said in ending.line
