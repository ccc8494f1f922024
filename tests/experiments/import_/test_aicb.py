"""A command line of AICB has the sizes of Megatron-LM's words, and a workload has the layout of its first line."""

import json
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.model_files import find_shape
from quadrille.experiments.import_.file_kinds import command_of
from quadrille.experiments.import_.imported_job import Asked
from quadrille.experiments.import_.job_formats import read_job
from tests.support.quadrille import called

MODEL = "layers=4,hidden=64,heads=8,sequence=32,vocabulary=200"
COMMAND = (
    "python -m workload_generator.SimAI_training_workload_generator --frame=Megatron --world_size=16 "
    "--tensor_model_parallel_size=2 --pipeline_model_parallel=2 --global_batch=32 --micro_batch=2 --num_layers=4 "
    "--seq_length=32 --hidden_size=64 --num_attention_heads=8 --vocab_size=200 --use-distributed-optimizer "
    "--use_flash_attn --enable_sequence_parallel --swiglu --epoch_num=1"
)
SAME = {
    "--num-layers": 4, "--hidden-size": 64, "--num-attention-heads": 8, "--seq-length": 32, "--vocab-size": 200,
    "--tensor-model-parallel-size": 2, "--pipeline-model-parallel-size": 2, "--global-batch-size": 32,
    "--micro-batch-size": 2, "--use-distributed-optimizer": True, "--sequence-parallel": True, "--swiglu": True,
    "--bf16": True, "--disable-bias-linear": True, "--untie-embeddings-and-output-weights": True,
    "--hidden-dropout": 0, "--attention-dropout": 0, "--attention-backend": "flash",
    "--no-create-attention-mask-in-dataloader": True,
}  # fmt: skip
HEAD = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 2 vpp: 2 ga: 3 all_gpus: 16 checkpoints: 0"
)
SENT = 2 * 2 * 32 * 64
"""Bytes of the stream of a microbatch of two sequences."""
LAYERS = (
    f"grad_param_comm -1 1 NONE 0 1 NONE 0 1 REDUCESCATTER 4096 100\nembedding_layer -1 1 ALLREDUCE {SENT} 1 NONE 0 1 "
    f"NONE 0 100\nattention_column -1 1 ALLGATHER {SENT} 1 NONE 0 1 NONE 0 100\n"
)


@pytest.fixture
def job(tmp_path):
    """A function that reads the job of a text."""

    def read(text, **asked):
        (tmp_path / "file").write_text(text)
        return read_job([str(tmp_path / "file")], Asked(**asked))

    return read


def workload(head=HEAD, layers=LAYERS):
    return f"{head}\n{layers.count(chr(10))}\n{layers}"


def test_a_command_line_is_the_job_of_megatrons_words(job):
    assert job(COMMAND).text == job(json.dumps(SAME), gpus=16).text


def test_the_script_sets_the_sizes_of_its_models(job):
    read = job("sh scripts/megatron_workload_with_aiob.sh -m 7 --world_size 16 --global_batch 32 --sp").experiment
    problem, grid = read.problem, read.grid
    assert (problem.layers, problem.hidden, problem.heads, problem.sequence) == (36, 4096, 32, 4096)
    assert (grid.x, grid.data, problem.batch, problem.attention) == (4, 4, 32, "unfused")
    assert problem.vocabulary == 50688 and problem.vocabulary % (128 * 4) == 0


def test_experts_need_their_switch(job):
    dense = job(COMMAND + " --num_experts=8 --moe_router_topk=2")
    routed = job(COMMAND + " --num_experts=8 --moe_router_topk=2 --moe_enable --expert_model_parallel_size=2")
    assert dense.experiment.problem.experts is None and not dense.differences
    assert (routed.experiment.problem.experts.count, routed.experiment.problem.experts.chosen) == (8, 2)


def test_a_workload_and_a_model_are_the_job_of_the_first_line(job):
    read = job(workload(), shape=find_shape(MODEL))
    problem, grid = read.experiment.problem, read.experiment.grid
    assert (grid.pipeline, grid.data, grid.x, problem.micro_batch, problem.batch) == (2, 4, 2, 2, 24)
    assert (problem.zero, read.experiment.sequence_parallel, problem.vocabulary, read.differences) == (1, True, 256, ())


def test_without_a_collective_pp_comm_or_the_batch_tell_the_microbatch(job):
    alone = LAYERS.splitlines(keepends=True)[0]
    head, shape = HEAD.replace("group: 2", "group: 1"), find_shape(MODEL)
    assert job(workload(f"{head} pp_comm: {SENT}.0", alone), shape=shape).experiment.problem.micro_batch == 2
    assert job(workload(head, alone), shape=shape, batch=72).experiment.problem.micro_batch == 3
    with pytest.raises(InputError, match="--batch N, a multiple of 24, does"):
        job(workload(head, alone), shape=shape, batch=71)


def test_a_model_of_other_sizes_differs_or_is_refused(job):
    other = find_shape(MODEL.replace("layers=4", "layers=8"))
    assert job(workload(), shape=other).differences == ("vpp x pp = 4 layers: the 8 of the model are predicted",)
    assert (
        "the model has no experts"
        in job(workload(HEAD.replace("ep: 1", "ep: 2")), shape=find_shape(MODEL)).differences[0]
    )
    with pytest.raises(InputError, match="2 x 32 x 96 = 6144 is accepted"):
        job(workload(), shape=find_shape(MODEL.replace("hidden=64", "hidden=96")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COMMAND.replace("Megatron", "DeepSpeed"), "--frame DeepSpeed: Megatron is accepted"),
        ("sh scripts/megatron_gpt.sh -m 7 --world_size 8", "the command that it prints is accepted"),
        ("sh megatron_workload_with_aiob.sh -m 8 --world_size 8", "-m 8: accepted are 7, 13, 22, 175, 405, moe"),
        (COMMAND.replace("=16", "=many"), "--world-size 'many': a whole number is accepted"),
        (workload(), "--model NAME|FILE does; quadrille replay FILE --machine NAME predicts the workload as it is"),
        (workload(HEAD.replace("all_gpus: 16", "")), "line 1: all_gpus: is missing"),
    ],
)
def test_what_is_missing_is_one_line(text, said, tmp_path, capsys):
    (tmp_path / "file").write_text(text)
    ended = called(capsys, "import", "job", tmp_path / "file")
    assert ended.status == 2 and said in ended.line


def test_simulate_takes_a_command_line(tmp_path, capsys):
    path = Path(tmp_path / "aicb.sh")
    path.write_text(COMMAND)
    assert command_of(str(path)) == "job"
    ended = called(capsys, "simulate", path, "--machine", "perlmutter")
    assert ended.status == 0 and "16 ranks" in ended.out
