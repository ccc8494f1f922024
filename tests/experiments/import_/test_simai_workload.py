"""A workload of SimAI takes the time of its formula, and a fault in one is named by its line."""

import json
from pathlib import Path

import pytest

from quadrille.cli.main import main
from tests.support.quadrille import called

HEAD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 checkpoints: 0"
STAR = "star:hosts=8,bandwidth=1e9,latency=1e-6"
HOP, RATE = 2e-6, 1e9
MIB = 1 << 20
SAMPLE = Path(__file__).parent / "samples" / "simai_microAllReduce.txt"


def text_of(*layers, head=HEAD):
    return f"{head}\n{len(layers)}\n" + "\n".join(layers) + "\n"


def ring(ranks, steps):
    """Seconds of `steps` steps of a ring, each of a part of a buffer of 1 MiB."""
    return steps * (HOP + MIB / ranks / RATE)


def replayed(capsys, path, text, *words):
    path.write_text(text)
    return json.loads(called(capsys, "replay", path, "--machine", STAR, "--json", "-", *words).out)


@pytest.mark.parametrize(
    ("layer", "seconds"),
    [
        (f"a -1 5000 ALLREDUCE {MIB} 0 NONE 0 0 NONE 0 0", 5e-6 + ring(2, 2)),
        (f"a -1 5000 ALLGATHER {MIB} 7000 NONE 0 0 NONE 0 100", 12.1e-6 + ring(2, 1)),
        (f"a -1 0 REDUCESCATTER_EP {MIB} 0 NONE 0 0 NONE 0 0", ring(2, 1)),
        (f"a -1 0 NONE 0 0 NONE 0 3000 ALLGATHER {MIB} 0", 3e-6 + ring(4, 3)),
        (f"a -1 0 NONE 0 0 NONE 0 0 ALLREDUCE_DP_EP {MIB} 0", ring(2, 2)),
        (f"a -1 0 ALLTOALL 0 9000 ALLREDUCE {MIB} 0 NONE 0 100", 9e-6),
    ],
    ids=["tensor", "update", "expert", "data", "replicas-of-experts", "layer-0-sums-no-input-gradient"],
)
def test_a_layer_takes_the_time_of_its_formula(layer, seconds, capsys, tmp_path):
    answer = replayed(capsys, tmp_path / "w.txt", text_of(layer))
    assert answer["makespan_s"] == pytest.approx(seconds, rel=1e-9)
    assert answer["ranks"] == 8


def test_gradients_of_weights_are_computed_and_summed_beside_what_follows(capsys, tmp_path):
    """Weight gradients (1 ms) hide behind the sum of input gradients, and their own sum behind layer 0 (9 ms).

    Both sums share the links from 1 ms on, so the first ends later by at most the rest of it.
    """
    layers = ("a -1 0 NONE 0 9000000 NONE 0 0 NONE 0 0", f"b -1 0 NONE 0 0 ALLREDUCE {MIB} 1000000 ALLREDUCE {MIB} 0")
    answer = replayed(capsys, tmp_path / "w.txt", text_of(*layers))
    rest = ring(2, 2) - 1e-3
    assert 0 < rest < 1e-4
    assert ring(2, 2) + 9e-3 <= answer["makespan_s"] * (1 + 1e-9) <= ring(2, 2) + 9e-3 + rest + HOP


def test_a_stage_of_a_pipeline_has_its_ranks_alone(capsys, tmp_path):
    (tmp_path / "w.txt").write_text(
        text_of("a -1 5000 NONE 0 0 NONE 0 0 NONE 0 0", head=HEAD.replace("pp: 1", "pp: 2"))
    )
    ended = called(capsys, "replay", tmp_path / "w.txt", "--machine", STAR)
    assert ended.out.startswith("4 ranks ")
    assert "2 pipeline stages" in ended.err


def test_a_sample_of_simai_takes_its_two_rings(capsys):
    answer = json.loads(called(capsys, "replay", SAMPLE, "--machine", STAR, "--json", "-").out)
    rings = sum(14 * (HOP + size / 8 / RATE) for size in (16 * MIB, 64 * MIB))
    assert answer["makespan_s"] == pytest.approx(2 * 556e-6 + rings, rel=1e-5)


LAYER = "a -1 1 NONE 0 1 NONE 0 1 NONE 0 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (text_of(LAYER, head=HEAD.replace("all_gpus", "gpus")), "line 1: all_gpus: is missing"),
        (text_of(LAYER, head=HEAD.replace("all_gpus: 8", "all_gpus: 9")), "multiple of"),
        (text_of(LAYER, head=HEAD.replace("all_gpus: 8", f"all_gpus: {10**12}")), "whole number from 1"),
        (text_of(LAYER, head=HEAD.replace("all_gpus: 8", f"all_gpus: {10**8}")), "at most 16384 ranks"),
        (text_of(LAYER, head=HEAD.replace("checkpoints: 0", "checkpoints: 2 0 4")), "checkpoints: 2"),
        (text_of(LAYER, head=HEAD.replace("FWD_IN_BCKWD", "DLRM")), "line 1: "),
        (text_of(LAYER).replace("\n1\n", "\n2\n"), "line 2: 2 layers: the file has 1 lines"),
        (text_of(LAYER).replace("\n1\n", "\nx\n"), "line 2: 'x'"),
        (HEAD, "line 2: ''"),
        (text_of(LAYER + " 7"), "line 3: 13 columns"),
        (text_of(LAYER.replace("NONE", "ALLREDUCEALLTOALL", 1)), "line 3, forward: collective 'ALLREDUCEALLTOALL'"),
        (text_of(LAYER.replace("-1 1", "-1 nan")), "line 3, forward: 'nan'"),
        (text_of(LAYER.replace("-1 1", "-1 " + "9" * 5000)), "line 3, forward: "),
    ],
)
def test_a_fault_is_refused_with_its_line(text, said, tmp_path, capsys):
    (tmp_path / "w.txt").write_text(text)
    assert main(["replay", str(tmp_path / "w.txt"), "--machine", STAR]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and len(printed.err) < 400
