"""Calculon's files: the application (model) and the execution of a job under Megatron-LM.

    application                                    argument of Megatron-LM
    hidden, feedforward, seq_size                  hidden-size, ffn-hidden-size, seq-length
    attn_heads, attn_size, num_blocks              num-attention-heads, kv-channels, num-layers

    execution                                      argument of Megatron-LM
    num_procs, tensor_par, pipeline_par, data_par  GPUs and parallel groups
    batch_size, microbatch_size                    global-batch-size, micro-batch-size
    datatype                                       fp16 (float16), bf16 (bfloat16), fp8-format (float8)
    activation_recompute                           full, attn_only (selective), none
    pipeline_interleaving                          num-virtual-stages-per-pipeline-rank
    optimizer_sharding                             use-distributed-optimizer
    data_par_overlap                               overlap-grad-reduce
    tensor_par_comm_type                           sequence-parallel (rs_ag, p2p_rs_ag), or not (ar)
    attention_type                                 multihead alone

Calculon has no vocabulary: 51,200 entries are predicted.  Offload of weights and activations is a difference.  The
system file (matrix, networks) is ignored: `--machine` names the machine.

Source: calculon-ai/calculon@caa4b11f, calculon/llm/llm.py (fields of the execution), models/, examples/.
"""

from collections.abc import Iterator, Sequence

from quadrille.experiments.import_.argument_values import Argument
from quadrille.experiments.import_.megatron_arguments import JobArguments
from quadrille.experiments.import_.settings import Settings, file_with

NAME = "Calculon"
MODEL, EXECUTION, SYSTEM = "num_blocks", "num_procs", "processing_mode"
"""A key of each kind of file."""
SIZES = {
    "hidden": "hidden-size",
    "feedforward": "ffn-hidden-size",
    "seq_size": "seq-length",
    "attn_heads": "num-attention-heads",
    "attn_size": "kv-channels",
    "num_blocks": "num-layers",
}
LAYOUT = {
    "tensor_par": "tensor-model-parallel-size",
    "pipeline_par": "pipeline-model-parallel-size",
    "batch_size": "global-batch-size",
    "microbatch_size": "micro-batch-size",
    "pipeline_interleaving": "num-virtual-stages-per-pipeline-rank",
}
READ = (
    *("num_procs", "data_par", "datatype", "activation_recompute", "optimizer_sharding", "tensor_par_comm_type"),
    "data_par_overlap",
    *("attention_type", "weight_offload", "activations_offload", "optimizer_offload", "training", "name"),
)
DTYPES: dict[str, dict[str, Argument]] = {
    "float16": {"fp16": True},
    "bfloat16": {"bf16": True},
    "float32": {},
    "float8": {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
}
RECOMPUTE = {"full": "full", "attn_only": "selective", "none": ""}
VOCABULARY = 51200
"""Entries of GPT's table in Megatron-LM on 8 tensor ranks.  Source: Narayanan et al., SC 2021, section 5."""


def fits(settings: Settings) -> bool:
    """Whether a file is one of Calculon's."""
    keys = settings.values
    return (MODEL in keys and "attn_heads" in keys) or (EXECUTION in keys and "tensor_par" in keys) or SYSTEM in keys


def calculon_arguments(files: Sequence[Settings]) -> tuple[JobArguments, tuple[str, ...], tuple[str, ...]]:
    """The arguments of Megatron-LM, the keys that are not read, and what cannot be followed.

    Raises
    ------
    InputError : no model or no execution, or a value that is not accepted
    """
    model, execution = (
        file_with(files, key, name, "Calculon")
        for key, name in ((MODEL, "model (num_blocks, …)"), (EXECUTION, "execution (num_procs, …)"))
    )
    arguments: dict[str, Argument] = {name: str(model.whole(key, least=1)) for key, name in SIZES.items()}
    arguments |= {name: str(execution.whole(key, 1, least=1)) for key, name in LAYOUT.items()}
    arguments |= {"padded-vocab-size": str(VOCABULARY), **_options(execution)}
    ignored = (*model.unread(*SIZES, "name"), *execution.unread(*LAYOUT, *READ))
    ignored += tuple(f"all of {file.path}" for file in files if SYSTEM in file.values)
    return JobArguments(arguments, execution.whole("num_procs", least=1)), ignored, tuple(_differences(execution))


def _options(execution: Settings) -> dict[str, Argument]:
    dtype, recompute = execution.word("datatype", "float16"), execution.word("activation_recompute", "none")
    if dtype not in DTYPES:
        raise execution.error("datatype", f"accepted are {', '.join(DTYPES)}")
    if recompute not in RECOMPUTE:
        raise execution.error("activation_recompute", f"accepted are {', '.join(RECOMPUTE)}")
    if not execution.flag("training", default=True):
        raise execution.error("training", "a training job (true) is accepted")
    _check_data(execution)
    arguments = {**DTYPES[dtype], "attention-backend": "unfused"}
    if RECOMPUTE[recompute]:
        arguments["recompute-granularity"] = RECOMPUTE[recompute]
    if execution.flag("optimizer_sharding"):
        arguments["use-distributed-optimizer"] = True
    if execution.flag("data_par_overlap"):
        arguments["overlap-grad-reduce"] = True
    if execution.word("tensor_par_comm_type", "ar") != "ar":
        arguments["sequence-parallel"] = True
    return arguments


def _check_data(execution: Settings) -> None:
    """Checks that the parallel groups have as many ranks as there are processes."""
    groups = [execution.whole(key, 1, least=1) for key in ("tensor_par", "pipeline_par", "data_par")]
    if groups[0] * groups[1] * groups[2] != execution.whole("num_procs", least=1):
        raise execution.error("num_procs", f"tensor_par x pipeline_par x data_par = {' x '.join(map(str, groups))}")


def _differences(execution: Settings) -> Iterator[str]:
    yield f"no vocabulary in Calculon: {VOCABULARY} entries are predicted"
    for key in ("weight_offload", "activations_offload", "optimizer_offload"):
        if execution.flag(key):
            yield f"{key}: nothing is kept on the host"
    if (kind := execution.word("attention_type", "multihead")) != "multihead":
        yield f"attention_type {kind:.40}: every head has its own keys"
