"""torchtitan's configuration (JSON of its dataclasses, or TOML): model, batch, parallel groups and precision.

    key                                             experiment
    model.name, model.flavor                        --gpt, for models that have a name here; else --model
    training.local_batch_size, global_batch_size    --batch; -1 for local x data ranks
    training.seq_len, training.max_norm             sequence, --clip
    training.mixed_precision_param, _reduce         --dtype, --gradient-bytes
    parallelism.data_parallel_shard_degree          --zero 3 with --overlap ors,oag; if it is 1, --zero 0 with --overlap
                                                    ogr (DistributedDataParallel)
    parallelism.tensor_, pipeline_, context_, expert_parallel_degree    --grid x=…,pipeline=…,context=…,expert=…
    parallelism.pipeline_parallel_microbatch_size   --micro-batch
    activation_checkpoint.mode                      --recompute full; selective is a difference
    quantize.linear.float8, .mx; float8, mx; model.converters    --products fp8, mxfp8

Differences: replicas of shards (HSDP), selective checkpointing by op, pipeline schedules other than 1F1B.

Source: pytorch/torchtitan, torchtitan/config/job_config.py, torchtitan/models/*/ (flavors).
"""

from collections.abc import Iterator, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.experiments.import_.imported_job import Asked, ImportedJob
from quadrille.experiments.import_.settings import Settings
from quadrille.experiments.import_.sharded_training import Layout, layout_experiment

NAME = "torchtitan"
MODELS = {
    ("llama3", "8b"): "llama3-8b",
    ("llama3", "70b"): "llama3-70b",
    ("llama3", "405b"): "llama3-405b",
    ("qwen3", "4b"): "qwen3-4b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "14b"): "qwen3-14b",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("deepseek_v3", "671b"): "deepseek-v3",
}
"""Models by name and flavor."""
PARALLEL = "parallelism"
DEGREES = {"tensor": "tensor", "pipeline": "pipeline", "context": "context", "expert": "expert"}
READ = (
    *("model.name", "model.flavor", "training.local_batch_size", "training.batch_size", "training.global_batch_size"),
    *("training.seq_len", "training.max_norm", "training.mixed_precision_param", "training.mixed_precision_reduce"),
    *(f"{PARALLEL}.{name}_parallel_degree" for name in DEGREES),
    *(f"{PARALLEL}.{name}" for name in ("data_parallel_shard_degree", "data_parallel_replicate_degree")),
    *(f"{PARALLEL}.{name}" for name in ("pipeline_parallel_microbatch_size", "pipeline_parallel_schedule")),
    *("activation_checkpoint.mode", "model.converters", "activation_checkpoint.selective_ac_option"),
)
DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def fits(settings: Settings) -> bool:
    """Whether a file is a configuration of torchtitan."""
    tops = {key.partition(".")[0] for key in settings.values}
    return {"training", PARALLEL} <= tops


def read_torchtitan(files: Sequence[Settings], asked: Asked) -> ImportedJob:
    """The job.

    Raises
    ------
    InputError : no model, no number of GPUs, or a value that is not accepted
    """
    settings = files[0]
    shape = asked.shape or _model(settings)
    degrees = {name: settings.whole(f"{PARALLEL}.{name}_parallel_degree", 1) or 1 for name in DEGREES}
    shards = _degree(settings, "data_parallel_shard_degree")
    replicas = max(1, _degree(settings, "data_parallel_replicate_degree"))
    ranks = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    gpus = asked.gpus or (ranks * shards * replicas if shards > 0 else 0)
    if not gpus:
        raise InputError(f"{settings.path}: the number of GPUs is missing: --gpus N")
    sharded = gpus // ranks // replicas * degrees["context"] > 1 and shards != 1
    batch, micro = _batch(settings, gpus // ranks, asked)
    layout = Layout(
        gpus=gpus,
        tensor=degrees["tensor"],
        pipeline=degrees["pipeline"],
        context=degrees["context"],
        expert=degrees["expert"],
        batch=batch,
        micro_batch=micro,
        sequence=asked.sequence or settings.whole("training.seq_len", 2048),
        zero=3 if sharded else 0,
        dtype=_dtype(settings, "training.mixed_precision_param", "bfloat16"),  # type: ignore[arg-type]
        gradient_bytes=4 if _dtype(settings, "training.mixed_precision_reduce", "float32") == "float32" else 2,
        clip=settings.number("training.max_norm", 1.0),
        recompute="full" if settings.word("activation_checkpoint.mode", "none") == "full" else "none",
        products=_products(settings),
        overlaps=frozenset({"ors", "oag"} if sharded else {"ogr"} if gpus > ranks else set()),
    )
    experiment = layout_experiment(layout, shape)
    differences = (*_differences(settings, replicas, sharded=sharded), *shape.approximations)
    return ImportedJob(experiment, settings.unread(*READ), differences, shape.remarks)


def _model(settings: Settings) -> ModelShape:
    named = settings.word("model.name"), settings.word("model.flavor")
    if named not in MODELS:
        words = f"model {named[0]:.40} {named[1]:.40}"
        raise InputError(f"{settings.path}: {words}: --model NAME, or --model config.json, gives its sizes")
    return SHAPES[MODELS[named]]


def _degree(settings: Settings, name: str) -> int:
    """A degree; -1 for all other ranks."""
    key = f"{PARALLEL}.{name}"
    return -1 if str(settings.values.get(key)) == "-1" else settings.whole(key, -1 if "shard" in name else 1)


def _batch(settings: Settings, data: int, asked: Asked) -> tuple[int, int]:
    """The batch and the microbatch: with a pipeline the local batch is cut, and without it is accumulated."""
    local = settings.whole("training.local_batch_size", settings.whole("training.batch_size", 8)) or 1
    whole = str(settings.values.get("training.global_batch_size", -1))
    batch = asked.batch or (local * data if whole == "-1" else settings.whole("training.global_batch_size"))
    is_cut = settings.whole(f"{PARALLEL}.pipeline_parallel_degree", 1) > 1
    micro = settings.whole(f"{PARALLEL}.pipeline_parallel_microbatch_size", 1) if is_cut else local
    return batch, micro or 1


def _dtype(settings: Settings, key: str, default: str) -> str:
    word = settings.word(key, default)
    if word not in DTYPES:
        raise settings.error(key, f"accepted are {', '.join(DTYPES)}")
    return DTYPES[word]


def _products(settings: Settings) -> Products:
    converters = str(settings.values.get("model.converters") or "")
    tops = " ".join(settings.values)
    if "mx" in converters or "quantize.linear.mx" in tops:
        return "mxfp8"
    return "fp8" if "float8" in converters or "quantize.linear.float8" in tops else "dtype"


def _differences(settings: Settings, replicas: int, *, sharded: bool) -> Iterator[str]:
    if replicas > 1 and sharded:
        yield f"data_parallel_replicate_degree {replicas}: weights are sharded over all data ranks"
    if (mode := settings.word("activation_checkpoint.mode", "none")) not in ("none", "full"):
        yield f"activation_checkpoint.mode {mode:.40}: nothing is recomputed"
    schedule = settings.word(f"{PARALLEL}.pipeline_parallel_schedule", "1f1b")
    if schedule != "1f1b" and settings.whole(f"{PARALLEL}.pipeline_parallel_degree", 1) > 1:
        yield f"pipeline_parallel_schedule {schedule:.40}: 1F1B is predicted"
