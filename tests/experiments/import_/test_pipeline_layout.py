"""A pipeline layout of Megatron-LM gives the layers of each chunk, or is refused in one line."""

import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.imported_job import Asked
from quadrille.experiments.import_.job_formats import read_job
from quadrille.experiments.import_.pipeline_layout import layers_of_chunks

SIZES = {
    "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 32, "--micro-batch-size": 1, "--vocab-size": 100,
    "--bf16": True, "--pipeline-model-parallel-size": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "layers", "stages", "chunks"),
    [
        ("Et|tL", 2, 2, (1, 1)),
        ("Et*3|(tt|)*6tL", 16, 2, (3, 2, 2, 2, 2, 2, 2, 1)),
        ("Et*3\\|\\(tt\\|\\)*2tL", 8, 4, (3, 2, 2, 1)),
        ("Et,t|(t|t|)*2,tmL", 7, 3, (2, 1, 1, 1, 1, 1)),
        ("E(t)*4|(t*2|(t|)*2)*1t*3L", 11, 5, (4, 2, 1, 1, 3)),
    ],
)
def test_a_layout_has_the_layers_of_its_chunks(layout, layers, stages, chunks):
    assert layers_of_chunks(layout, layers, stages) == chunks


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("Et|tL", "has 2 layers (t), and --num-layers is 4"),
        ("Ett|t|tL", "3 chunks, no multiple of 2"),
        ("Etttt|L", "1 chunks without a layer"),
        ("tt|Ett|L|", "embedding (E) not at the begin"),
        ("Ettttx|L", "accepted are E, t, m, L"),
        ("((t*9999)*9999)*9999", "more than 20000 letters"),
        ("E(tt|tL", "accepted are"),
        ("(" * 5000, "accepted are"),
    ],
)
def test_another_layout_is_refused_in_one_short_line(layout, said):
    with pytest.raises(InputError) as error:
        layers_of_chunks(layout, 4, 2)
    assert said in str(error.value) and len(str(error.value)) < 200


def test_a_job_with_a_layout_has_interleaved_stages_of_its_sizes(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**SIZES, "--num-layers": 7, "--pipeline-model-parallel-layout": "Ettt|t|tt|tL"}))
    experiment = read_job([str(path)], Asked(gpus=2)).experiment
    assert (experiment.problem.interleave, experiment.problem.stages) == (2, (3, 1, 2, 1))
