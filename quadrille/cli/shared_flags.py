"""The declarations of flags that several commands have, and the groups of flags from which commands are composed.

A command gets the values as typed and parses them (`quadrille/cli/parsing/`). The modules that it needs are imported
when it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import click

from quadrille.cli.command_declarations import argument, flag, switch, typed
from quadrille.cli.experiment_files import take_file, take_record
from quadrille.cli.parsing.flags import MatmulFlags, RunFlags, TrainingFlags

if TYPE_CHECKING:
    from quadrille.cli.parsing.machines import MachineFlags


Sizes = Annotated[str, flag("--matmul", "M,K,N", "Sizes of the multiplication C (M x N) = A (M x K) B (K x N).")]
Widths = Annotated[str, flag("--mlp", "W0,W1,…", "Train a stack of linear layers of these widths; needs --batch.")]
Model = Annotated[
    str,
    flag(
        "--gpt",
        "NAME|SIZES|FILE.json",
        "Train a GPT: a name (see `quadrille models`), sizes such as layers=2,…, or a config.json; ,key=value may "
        "follow a name or a file.",
    ),
]
Tokens = Annotated[
    str,
    flag("--sequence", "N", "Tokens of a sequence; by default the model's, and of a config.json at most 8,192."),
]
Approximate = Annotated[
    bool,
    switch("--approximate", "Go on without the traits of a config.json that no schedule has; the record lists them."),
]
Batch = Annotated[str, flag("--batch", "N", "Global batch of a training step: rows (--mlp) or sequences (--gpt).")]
SchemeName = Annotated[
    str,
    flag(
        "--scheme",
        "NAME",
        "Parallel scheme of training steps: 4d, megatron (tensor parallelism, TP), optimus, tesseract or bian.",
    ),
]
SequenceParallel = Annotated[
    bool, switch("--sequence-parallel", "Shard activations over x between products (Megatron's sequence parallelism).")
]
Zero = Annotated[
    str,
    flag(
        "--zero",
        "0|1|2|3",
        "ZeRO stage over data: shards the optimizer (1), gradients too (2), weights too (3, as FSDP does).",
    ),
]
ContextParallel = Annotated[
    str,
    flag(
        "--context-parallel",
        "ring|all-gather|ulysses",
        "How attention crosses the grid axis context, which cuts every sequence (or p2p, all_gather, a2a).",
    ),
]
MicroBatch = Annotated[
    str,
    flag(
        "--micro-batch",
        "B",
        "Microbatch: rows or sequences at once on each coordinate of data and z; the last may be smaller.",
    ),
]
Interleave = Annotated[str, flag("--interleave", "V", "Chunks of layers on each pipeline stage (virtual stages).")]
PipelineScheduleName = Annotated[
    str,
    flag(
        "--pipeline-schedule",
        "gpipe|1f1b|interleaved|zb-h1|zb-v|message-driven",
        "Order of passes on each pipeline stage; zb-h1, zb-v: zero bubble; message-driven: as messages arrive.",
    ),
]
PipelineLimit = Annotated[
    str,
    flag("--pipeline-limit", "N", "Microbatches in flight on a message-driven stage; by default the number of stages."),
]
StageLayers = Annotated[
    str, flag("--stages", "N,…", "Layers of each pipeline stage, such as 5,6,6,5; by default as even as possible.")
]
Attention = Annotated[
    str,
    flag(
        "--attention",
        "fused|unfused|flash1|flash2|flash3|cudnn",
        "Attention: fused, by the machine's usual kernel or by this one (FlashAttention 1 to 3, cuDNN), or unfused, "
        "whose weights (s x s per head) go through memory.",
    ),
]
Recompute = Annotated[
    str,
    flag(
        "--recompute",
        "none|selective|full|full-keep-exchange",
        "What the backward pass recomputes instead of storing: nothing, unfused attention, whole layers, or whole "
        "layers but the rows that experts exchange.",
    ),
]
GradientBytes = Annotated[
    str, flag("--gradient-bytes", "4|2", "Bytes of an accumulated gradient, where the dtype has 16 bits.")
]
SmallProducts = Annotated[
    str,
    flag(
        "--products",
        "dtype|fp8|fp8-delayed|fp8-block|mxfp8|nvfp4",
        "Precision of the products of linear layers, with their casts; also tensorwise, delayed, blockwise.",
    ),
]
Fp8ParamGather = Annotated[
    bool,
    switch("--fp8-param-gather", "Store and gather weights in the precision of --products, without 16-bit copies."),
]
DropoutShare = Annotated[
    str, flag("--dropout", "P", "Share of attention weights and hidden states that dropout sets to zero; 0 for none.")
]
OptimizerOffload = Annotated[
    str,
    flag(
        "--offload",
        "optimizer[:host][:N]",
        "Optimizer state in host memory, in buckets of N parameters; host: the host's cores run Adam, too.",
    ),
]
ExpertLoads = Annotated[
    str,
    flag(
        "--expert-load",
        "balanced|zipf:S|FILE",
        "Rows of each expert in a prediction: even, by Zipf's law, or in proportion to counts (also typed: 8,4,4,0).",
    ),
]
Sparsity = Annotated[
    str,
    flag("--sparsity", "S", "Share of the weights of linear layers that are pruned, from 0 and below 1; 0 for none."),
]
Prune = Annotated[
    str,
    flag(
        "--prune",
        "magnitude|random",
        "Weights that are kept: those of the largest initial magnitude (default), or random ones.",
    ),
]
SparseStates = Annotated[
    bool,
    switch(
        "--sparse-states", "Compress gradients and optimizer states of pruned weights behind one shared index (SAMO)."
    ),
]
Steps = Annotated[str, flag("--steps", "N", "Training steps of one run.")]
LearningRate = Annotated[
    str, flag("--learning-rate", "R", "Learning rate of Adam; by default 0.001, less in wide layers.")
]
Clip = Annotated[str, flag("--clip", "NORM", "Norm to which all gradients together are clipped; 0 for no clipping.")]
KeepFirst = Annotated[
    str, flag("--keep-first", "N", "Layers of each stage that keep their gathered weights for the backward pass.")
]
GemmLayouts = Annotated[
    str,
    flag(
        "--gemm-layouts",
        "written|MACHINE",
        "Layout of each GEMM: as written, or the fastest of NN, NT and TN on a machine.",
    ),
]
Software = Annotated[
    str,
    flag(
        "--software",
        "NAME[:KEY=VALUE,…]",
        "megatron: memory as PyTorch allocates it under Megatron-LM, such as megatron:loss=te,deterministic=yes.",
    ),
]
Save = Annotated[str, flag("--save", "FILE", "Write a checkpoint after the last training step.")]
Load = Annotated[str, flag("--load", "FILE", "Resume from a checkpoint, which may come from another grid and scheme.")]
Algorithm = Annotated[str, flag("--algorithm", "NAME", "1d-column, 1d-row, cannon, summa, 2.5d, 3d or 4d.")]
GridLengths = Annotated[
    str,
    flag(
        "--grid",
        "AXIS=N,…",
        "Ranks along each axis: pipeline (PP), data (DP), x and y (TP), z (sharded weights); others are 1.",
    ),
]
Gpus = Annotated[str, flag("--gpus", "N", "Number of GPUs; one length * of --grid follows from it, as in data=*,x=4.")]
NamedOrder = Annotated[str, flag("--order", "AXIS,…", "Order of the axes in rank numbers, the innermost axis first.")]
Order = Annotated[
    str,
    flag(
        "--order",
        "AXIS,…|auto",
        "Order of the axes in rank numbers, the innermost axis first; auto takes the fastest on the machine.",
    ),
]
Dtype = Annotated[str, flag("--dtype", "NAME", "Element type: float64, float32, float16 or bfloat16.")]
Passes = Annotated[str, flag("--passes", "NAME", "forward (C) or training (C, dA, dB).")]
Gathered = Annotated[
    str, flag("--gathered", "NAME", "Gathered weights: keep them for the backward pass, or gather them again.")
]
Panel = Annotated[str, flag("--panel", "W", "Width of the panels that SUMMA broadcasts.")]
Transposed = Annotated[
    str, flag("--transposed", "none|a|b", "Operand that is stored transposed: A as K x M, or B as N x K (3d, summa).")
]
Overlap = Annotated[
    str,
    flag(
        "--overlap",
        "LIST",
        "Communication beside products: none, or a list of oar (all-reduce), ors (reduce-scatter), oag (all-gather), "
        "ogr (gradients over data, in the backward pass), opg (weights of ZeRO 1 and 2, in the forward pass).",
    ),
]
Bands = Annotated[
    str,
    flag(
        "--bands", "N", "Bands of rows that a product is cut into; each band is reduced while the next is multiplied."
    ),
]
Collectives = Annotated[
    str,
    flag(
        "--collectives",
        "WHO",
        "Collective algorithms: own[:NAME[:CHUNK]], library[:vector], auto or, in predictions, nccl; "
        "the default predicts what the machine runs: nccl on GPUs, own on hosts.",
    ),
]
Threads = Annotated[str, flag("--threads", "T", "BLAS threads of each rank; by default its share of the cores.")]
Machine = Annotated[
    str, flag("--machine", "NAME|FILE", "A machine file (.toml, or with a /) or a name (see `quadrille machines`).")
]
AnyNetwork = Annotated[
    str, flag("--machine", "NAME|FILE|TOPOLOGY", "A machine, or a topology as topology show takes it.")
]
Settings = Annotated[
    list[str], flag("--set", "PATH=VALUE|xFACTOR", "Change a number of the machine; may be given several times.")
]
Routing = Annotated[
    str, flag("--routing", "RULE", "Routing rule: shortest, minimal, spray, ecmp[:SEED], …; by default the machine's.")
]
Fail = Annotated[list[str], flag("--fail", "LINK", "A failed link, or a pattern such as nic:*>leaf:3; repeatable.")]
Degrade = Annotated[
    list[str], flag("--degrade", "LINK=SHARE", "Link or pattern with less bandwidth: gpu:*>leaf:0=0.5.")
]
Slow = Annotated[list[str], flag("--slow", "GPU=SHARE", "A slower GPU, such as gpu:7=0.8.")]
PlacementRule = Annotated[
    str,
    flag(
        "--placement",
        "RULE",
        "Rank placement: packed, packed:N (GPUs of a node), scattered, axes:AXIS,… or a file with a place a line.",
    ),
]
Shards = Annotated[
    str, flag("--shards", "exact|even", "Shard sizes in a prediction: exact, or even (the default above 4,096 ranks).")
]
Noise = Annotated[
    str,
    flag(
        "--jitter",
        "compute=SIGMA,network=SIGMA,gpus=SIGMA|machine[,seed=S]",
        "Lognormal noise of every op in a prediction, with median 1; gpus: all wait for the slowest GPU.",
    ),
]
NoFold = Annotated[bool, switch("--no-fold", "Simulate every rank, also ranks that are equivalent to another one.")]
NoFoldTime = Annotated[
    bool, switch("--no-fold-time", "Simulate every iteration of a loop, also iterations that repeat.")
]
NoMemory = Annotated[bool, switch("--no-memory", "Simulate every step of a collective, also steps that repeat.")]
NoLocal = Annotated[bool, switch("--no-local", "Compute all flow rates anew at every event.")]
Granularity = Annotated[
    str,
    flag(
        "--granularity",
        "WORD",
        "Granularity of the simulation: exact, collective (with bounds), passes (of a pipeline) or auto, a quick one.",
    ),
]
Ranks = Annotated[
    str,
    flag(
        "--ranks",
        "0-7,12",
        "Ranks that the trace, the timeline and the figure show; by default one of each class.",
    ),
]
Plot = Annotated[str, flag("--plot", "FILE", "Write a figure (.png, .svg, .pdf).", "--figure")]
LinksPlot = Annotated[str, flag("--plot", "FILE", "Draw the use of the links (.png, .svg, .pdf).", "--figure")]
Json = Annotated[str, flag("--json", "FILE|-", "Write the result as JSON; - is stdout.")]
Store = Annotated[
    str, flag("--store", "FILE.sqlite", "Keep each answer in this file, and compute only what it does not have.")
]
Trace = Annotated[str, flag("--trace", "FILE", "Write a Chrome trace, for ui.perfetto.dev.")]
TimelineFile = Annotated[str, flag("--timeline", "FILE", "Write the timeline, for the figure of compare.")]
DeviceMemory = Annotated[
    str,
    flag(
        "--device-memory", "SIZE", "Memory of the device that NumPy arrays stand for, of each rank; host arrays beside."
    ),
]
Backend = Annotated[str, flag("--backend", "NAME", "Array library: numpy or cupy.")]
Blas = Annotated[
    str, flag("--blas", "NAME|PATH", "BLAS for host arrays: numpy, mkl, openblas, blis, or the path of a library.")
]
Carrier = Annotated[str, flag("--carrier", "NAME", "Carrier of messages between GPUs: auto, mpi or nccl.")]
Chunk = Annotated[str, flag("--chunk", "auto|none|SIZE", "Chunk size of our own collectives' messages.")]
Progress = Annotated[
    str,
    flag(
        "--progress", "auto|none|thread", "How communication advances beside products: auto, none or a progress thread."
    ),
]
Seed = Annotated[str, flag("--seed", "S", "Seed of the generated operands or parameters.")]
Operands = Annotated[
    str, flag("--operands", "KIND", "Generated operands: uniform, or integers (whose sums are exact).")
]
FileA = Annotated[str, flag("--a", "FILE.npy", "Operand A.")]
FileB = Annotated[str, flag("--b", "FILE.npy", "Operand B.")]
FileDC = Annotated[str, flag("--dc", "FILE.npy", "Operand dC, in training.")]
FileC = Annotated[str, flag("--c", "FILE.npy", "File for C.")]
FileDA = Annotated[str, flag("--da", "FILE.npy", "File for dA.")]
FileDB = Annotated[str, flag("--db", "FILE.npy", "File for dB.")]
Warmups = Annotated[str, flag("--warmups", "N", "Warm-up runs before the measured runs.")]
Repeats = Annotated[str, flag("--repeats", "N", "Measured runs.")]
Verify = Annotated[bool, switch("--verify", "Check the result; exit status 1 if it is wrong.")]
VerifyMethod = Annotated[str, flag("--verify-method", "NAME", "How the result is verified: auto, serial or freivalds.")]

ORDER = "x,y,z,data"
VARY_HELP = (
    "Values of gpus, fail, degrade, slow, set:PATH or any flag that changes a prediction (of a collective: bytes, "
    "group, …); with ; between them where they hold commas. May be given several times: all combinations."
)


def flags_of(**defaults: tuple[object, object]) -> list[Parameter]:
    """The parameters of a command, from the declaration and the default of each flag, by name."""
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=option, default=default)
        for name, (option, default) in defaults.items()
    ]


def flags_from(words: object, **options: object) -> list[Parameter]:
    """The parameters of a command, from the declaration of each flag, by name; the defaults come from `words`."""
    return flags_of(**{name: (option, getattr(words, name)) for name, option in options.items()})


def by_default(group: Sequence[Parameter], **defaults: object) -> list[Parameter]:
    """The flags of a group, with other defaults for some flags."""
    return [parameter.replace(default=defaults.get(parameter.name, parameter.default)) for parameter in group]


FROM_FILE = [
    Parameter(
        "experiment_file",
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[
            str,
            argument("[EXPERIMENT.toml]", "A file whose keys are names of flags; typed flags win.", callback=take_file),
        ],
        default="",
    )
]
"""The argument with the experiment file."""
FROM_RECORD = flags_of(
    from_record=(
        Annotated[str, flag("--from", "RECORD.json", "Repeat the experiment of a record.", callback=take_record)],
        "",
    )
)
"""The flag with the record whose experiment is repeated."""
EXPERIMENT = flags_from(
    TrainingFlags(),
    matmul=Sizes,
    algorithm=Algorithm,
    grid=GridLengths,
    order=Order,
    dtype=Dtype,
    passes=Passes,
    gathered=Gathered,
    panel=Panel,
    transposed=Transposed,
    overlap=Overlap,
    bands=Bands,
)
"""The flags of a multiplication and its schedule."""
TRAINING = flags_from(
    TrainingFlags(),
    mlp=Widths,
    gpt=Model,
    sequence=Tokens,
    approximate=Approximate,
    batch=Batch,
    scheme=SchemeName,
    sequence_parallel=SequenceParallel,
    context_parallel=ContextParallel,
    zero=Zero,
    micro_batch=MicroBatch,
    interleave=Interleave,
    pipeline_schedule=PipelineScheduleName,
    pipeline_limit=PipelineLimit,
    stages=StageLayers,
    attention=Attention,
    recompute=Recompute,
    gradient_bytes=GradientBytes,
    dropout=DropoutShare,
    offload=OptimizerOffload,
    expert_load=ExpertLoads,
    sparsity=Sparsity,
    prune=Prune,
    sparse_states=SparseStates,
    products=SmallProducts,
    fp8_param_gather=Fp8ParamGather,
    steps=Steps,
    learning_rate=LearningRate,
    clip=Clip,
    keep_first=KeepFirst,
    gemm_layouts=GemmLayouts,
    software=Software,
)
"""The flags of training steps, in addition to `EXPERIMENT`."""
EXECUTION = flags_from(
    TrainingFlags(), collectives=Collectives, threads=Threads, placement=PlacementRule, shards=Shards, jitter=Noise
)
"""The flags of an experiment's execution: collectives, threads, rank placement, shard sizes and noise."""
RUN = flags_from(
    RunFlags(),
    backend=Backend,
    blas=Blas,
    carrier=Carrier,
    chunk=Chunk,
    progress=Progress,
    device_memory=DeviceMemory,
    seed=Seed,
    operands=Operands,
    warmups=Warmups,
    repeats=Repeats,
    verify=Verify,
    verify_method=VerifyMethod,
    save=Save,
    load=Load,
)
"""The flags of a run on this machine: arrays, messages, repeats and verification."""
INPUTS = flags_of(a=(FileA, ""), b=(FileB, ""), dc=(FileDC, ""))
OUTPUTS = flags_of(c=(FileC, ""), da=(FileDA, ""), db=(FileDB, ""))
ON_MACHINE = flags_of(
    machine=(Machine, ""),
    settings=(Settings, []),
    routing=(Routing, ""),
    fail=(Fail, []),
    degrade=(Degrade, []),
    slow=(Slow, []),
)
"""The flags of a machine and of the changes to it."""
ON_NETWORK = [*flags_of(machine=(AnyNetwork, "")), *ON_MACHINE[1:]]
"""The flags of a machine for commands that also accept a topology."""
SWITCHES = flags_of(
    no_fold=(NoFold, False), no_fold_time=(NoFoldTime, False), no_memory=(NoMemory, False), no_local=(NoLocal, False)
)
"""The switches that turn off shortcuts of the simulator; no prediction depends on them."""
GRANULARITY = flags_of(granularity=(Granularity, "auto"))
"""The flag that decides whether a prediction may be a bounded approximation."""
DESTINATIONS = flags_of(
    json=(Json, ""), trace=(Trace, ""), timeline=(TimelineFile, ""), plot=(Plot, ""), ranks=(Ranks, "")
)
DETAIL = flags_of(
    quiet=(Annotated[bool, switch("--quiet", "Print the verdict alone, and show no progress.")], False),
    verbose=(Annotated[bool, switch("--verbose", "Print every op, and every warning of the calibration.")], False),
)
"""The flags of the level of detail of the printed result."""
NO_PROGRESS = flags_of(quiet=(Annotated[bool, switch("--quiet", "Show no progress.")], False))


def with_flags(*groups: Sequence[Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that declares the flags of these groups as the parameters of a command, after its context."""

    def declared(command: Callable[..., None]) -> Callable[..., None]:
        invocation = Parameter("invocation", Parameter.POSITIONAL_OR_KEYWORD, annotation=click.Context)
        parameters = [invocation, *(parameter for group in groups for parameter in group)]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return declared


def group_values(values: Mapping[str, Any], group: Sequence[Parameter]) -> dict[str, Any]:
    """The values of the flags of a group, by name."""
    return {parameter.name: values[parameter.name] for parameter in group}


def machine_flags(flags: Mapping[str, Any]) -> "MachineFlags":
    """The flags of the machine, with defaults for a command without such flags."""
    from quadrille.cli.parsing.machines import MachineFlags

    values = group_values(flags, [parameter for parameter in ON_MACHINE if parameter.name in flags]).items()
    on: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values}
    return MachineFlags(**on)


def experiment_flags(context: click.Context, values: Mapping[str, Any]) -> MatmulFlags:
    """The flags of a multiplication or of training steps; the dtype of training steps is empty unless it was typed."""
    names = {*TrainingFlags.__dataclass_fields__} & {*values}
    chosen = {name: values[name] for name in names}
    if (values["mlp"] or values["gpt"]) and "dtype" not in typed(context, values):
        chosen["dtype"] = ""
    return TrainingFlags(**chosen)
