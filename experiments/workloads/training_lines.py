"""The lines of a printed record about training steps: losses, rates, exposed communication and memory."""

from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, get_args

from msgspec import UNSET

from quadrille.algorithms.formats.record import HOST_MEMORY_KIND, PathPart, PathSegment, Record, device_bytes
from quadrille.algorithms.formats.workload import GptSizes, Workload
from quadrille.algorithms.units import LEAST_SCIENTIFIC, format_bytes, format_seconds

if TYPE_CHECKING:
    from quadrille.algorithms.training.architecture import Architecture
    from quadrille.algorithms.training.experts import Experts

LOSSES_SHOWN = 12
GIGA, TERA = 1e9, 1e12
PARTS: tuple[PathPart, ...] = get_args(PathPart)
PATH_OPS_SHOWN = 3
MINOR = 1e-6
"""Share of the critical path below which a part is not named."""
TRAINING_DEFAULTS = {
    "zero": 0,
    "micro_batch": None,
    "interleave": 1,
    "pipeline_schedule": "1f1b",
    "pipeline_limit": 0,
    "stages": (),
    "attention": "fused",
    "recompute": "none",
    "gradient_bytes": 4,
    "dropout": 0.0,
    "offload": None,
    "expert_load": None,
    "sparsity": 0.0,
    "prune": "magnitude",
    "sparse_states": False,
    "context_parallel": "ring",
    "products": "dtype",
    "fp8_param_gather": False,
    "steps": 1,
    "clip": 0.0,
    "keep_first": 0,
    "gemm_layouts": "written",
    "software": "",
}
"""Defaults of the options of training steps."""


def workload_text(workload: Workload) -> str:
    """The sizes of a workload, as text; a named model has its name.

    >>> from quadrille.algorithms.formats.workload import MatmulSizes, MlpSizes
    >>> workload_text(Workload(MatmulSizes(2, 3, 5))), workload_text(Workload(mlp=MlpSizes((4, 8, 2), 6)))
    ('m=2 k=3 n=5', 'mlp 4,8,2 of 6 rows')
    >>> workload_text(Workload(gpt=GptSizes(24, 768, 16, 1024, 51200, 8)))
    'gpt of 24 layers, hidden 768, 16 heads, vocabulary 51200, 8 sequences of 1024'
    >>> workload_text(Workload(gpt=GptSizes(24, 1024, 16, 512, 50257, 8)))
    'gpt3-350m, 8 sequences of 512'
    """
    if workload.matmul is not None:
        sizes = workload.matmul
        stored = f" transposed={sizes.transposed}" if sizes.transposed else ""
        return f"m={sizes.m} k={sizes.k} n={sizes.n}{stored}"
    if workload.mlp is not None:
        return f"mlp {','.join(map(str, workload.mlp.widths))} of {workload.mlp.rows} rows"
    gpt = workload.gpt
    assert gpt is not None
    model = (
        model_name(gpt)
        or f"gpt of {gpt.layers} layers, hidden {gpt.hidden}, {gpt.heads} heads, vocabulary {gpt.vocabulary}"
    )
    return f"{model}, {gpt.batch} sequence{'s' if gpt.batch > 1 else ''} of {gpt.sequence}"


def model_name(gpt: GptSizes) -> str:
    """The name of the model with these sizes, of any sequence and batch; empty for sizes without a name.

    The Llama and Llama 2 models of 7 and 13 billion parameters differ in the sequence alone.  Among models with these
    sizes, the model with this sequence has precedence.
    """
    from quadrille.algorithms.training.model_shapes import SHAPES

    architecture, experts = _architecture(gpt), _experts(gpt)
    sizes = (gpt.layers, gpt.hidden, gpt.heads, gpt.vocabulary, gpt.inner or 4 * gpt.hidden)
    sequence_of = {
        name: shape.sequence
        for name, shape in SHAPES.items()
        if sizes == (shape.layers, shape.hidden, shape.heads, shape.vocabulary, shape.mlp)
        and architecture == shape.architecture
        and experts == shape.experts
    }
    exact = [name for name, sequence in sequence_of.items() if sequence == gpt.sequence]
    return next(iter([*exact, *sequence_of]), "")


def model_lines(workload: Workload) -> Iterator[str]:
    """The line about the traits of a model without a name; none for the plain GPT."""
    gpt = workload.gpt
    if gpt is not None and not model_name(gpt):
        traits = (*_architecture(gpt).words, *_expert_words(gpt))
        if traits:
            yield f"model: {', '.join(traits)}"


def _expert_words(gpt: GptSizes) -> Iterator[str]:
    """The experts of a model, as texts for a report."""
    if gpt.experts:
        biases = " with biases" if gpt.expert_biases else ""
        yield f"{gpt.experts} experts of {gpt.expert_ffn}{biases}, {gpt.top_k} a token"
    if gpt.dense_layers != "0":
        yield f"dense layers {gpt.dense_layers if '-' in gpt.dense_layers else 'the first ' + gpt.dense_layers}"
    if gpt.experts_every > 1:
        yield f"experts in every layer of {gpt.experts_every}"
    if gpt.shared_ffn:
        yield f"{'gated ' if gpt.shared_gate else ''}shared expert of {gpt.shared_ffn}"
    if gpt.capacity is not None:
        yield f"capacity {gpt.capacity:g}"


def workload_flags(record: Record) -> list[str]:
    """The flags that describe the workload of a record, and its algorithm or scheme."""
    work, options = record.workload, record.options
    if work.matmul is not None:
        sizes = work.matmul
        stored = [f"--transposed {sizes.transposed}"] if sizes.transposed else []
        return [f"--matmul {sizes.m},{sizes.k},{sizes.n}", *stored, f"--algorithm {record.algorithm}"]
    if work.mlp is not None:
        words = [f"--mlp {','.join(map(str, work.mlp.widths))} --batch {work.mlp.rows}"]
    else:
        assert work.gpt is not None
        words = [f"--gpt {sized_flag(work.gpt)} --batch {work.gpt.batch}"]
    words += [f"--scheme {record.algorithm}"]
    words += ["--sequence-parallel"] if options.sequence_parallel is True else []
    for name, usual in TRAINING_DEFAULTS.items():
        value = getattr(options, name)
        if value is not UNSET and value != usual:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {text}"))
    return words


def _architecture(gpt: GptSizes) -> "Architecture":
    from quadrille.algorithms.training.architecture import Architecture
    from quadrille.algorithms.training.model_files import TRAITS

    return Architecture(**{name: getattr(gpt, name) for name in TRAITS})


def _experts(gpt: GptSizes) -> "Experts | None":
    from quadrille.algorithms.training.experts import EXPERT_KEYS, changed_experts

    if not gpt.experts:
        return None
    values = {key: getattr(gpt, key) for key in EXPERT_KEYS}
    return changed_experts(None, {key: value for key, value in values.items() if value is not None})


def sized_flag(gpt: GptSizes) -> str:
    """The value of `--gpt` for a model of these sizes.

    >>> sized_flag(GptSizes(2, 8, 4, 16, 32, 1, gated=True))
    'layers=2,hidden=8,heads=4,sequence=16,vocabulary=32,gated=yes'
    """
    from quadrille.algorithms.training.model_files import NEEDED, OPTIONAL

    sizes = {name: getattr(gpt, name) for name in (*NEEDED, *OPTIONAL) if getattr(gpt, name)}
    experts = _experts(gpt)
    options = _architecture(gpt).options | (experts.options if experts else {})
    return ",".join(f"{name}={_flag_value(value)}" for name, value in (sizes | options).items())


def _flag_value(value: object) -> str:
    """A value as `--gpt` takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def training_lines(record: Record) -> Iterator[str]:
    """The lines about a record of training steps in addition to the total; none for a matmul."""
    if record.seconds_per_iteration is UNSET:
        return
    yield from approximation_lines(record)
    if losses := record.losses or ():
        yield _losses(losses)
    yield f"iteration: {format_seconds(record.seconds_per_iteration)}, {throughput(record)}"
    yield from _utilisation(record)
    if record.workload.gpt is not None and record.model_flops_per_second_per_gpu:
        yield _counted_attention(record.workload.gpt)
    if exposed := record.exposed_seconds_by_axis or {}:
        words = ", ".join(f"{axis} {format_seconds(seconds)}" for axis, seconds in exposed.items())
        stages = "; pipeline has the waiting for other stages, too" if "pipeline" in exposed else ""
        yield f"exposed communication of all steps: {words}{stages}"
    yield from offload_lines(record)
    yield from expert_load_lines(record)
    if kinds := record.memory_bytes_by_kind or {}:
        notes = {"activations": f" ({_dropout_text(record)})"} if record.workload.gpt is not None else {}
        on_device = {kind: size for kind, size in kinds.items() if size and kind != HOST_MEMORY_KIND}
        sizes = (f"{kind} {format_bytes(size)}{notes.get(kind, '')}" for kind, size in on_device.items())
        yield f"memory of a rank: {format_bytes(device_bytes(kinds))}: {', '.join(sizes)}"
        if isinstance(record.memory_bytes_by_stage, tuple) and len(record.memory_bytes_by_stage) > 1:
            yield f"memory of a rank by stage: {', '.join(map(format_bytes, record.memory_bytes_by_stage))}"
        if on_host := kinds.get(HOST_MEMORY_KIND, 0):
            yield f"memory of a rank on its host: {format_bytes(on_host)}: weights and moments of the optimizer"
    if record.critical_path:
        yield _critical_path(record.critical_path)


def approximation_lines(record: Record) -> Iterator[str]:
    """The line about keys of a `config.json` that the schedule does not follow; none if it follows all."""
    if record.options.approximate:
        yield f"approximated: {'; '.join(record.options.approximate)}"


def expert_load_lines(record: Record) -> Iterator[str]:
    """The lines about experts that are expected to have more rows than others, and their ranks; none for even loads."""
    gpt, text, ranks = record.workload.gpt, record.options.expert_load, record.grid.get("expert", 1)
    if gpt is None or text is UNSET:
        return
    from quadrille.algorithms.training.experts import parse_expert_load

    load = parse_expert_load(text)
    assert load is not None
    routed, of_model = load.of(gpt.experts), _experts(gpt)
    assert of_model is not None
    loads = of_model.taken(routed)
    mean, hottest = sum(loads) / len(loads), max(range(len(loads)), key=loads.__getitem__)
    yield f"the hottest expert is {hottest}, with {loads[hottest] / mean:.3g} times the rows of the mean expert"
    if sum(loads) < sum(routed):
        yield f"{1 - sum(loads) / sum(routed):.1%} of the rows are dropped, at capacity {of_model.capacity:g}"
    if ranks == 1:
        return
    each = len(loads) // ranks
    of_ranks = [sum(loads[rank * each : (rank + 1) * each]) / (each * mean) for rank in range(ranks)]
    hot, cold = (choose(range(ranks), key=of_ranks.__getitem__) for choose in (max, min))
    experts = f"experts {hot * each} to {hot * each + each - 1}"
    yield (
        f"ranks at expert={hot} ({experts}) have {of_ranks[hot]:.3g} times the rows of the mean rank, and ranks at "
        f"expert={cold} have {of_ranks[cold]:.3g} times"
    )


def offload_lines(record: Record) -> Iterator[str]:
    """The lines about exposed copies and gradient reductions of an offloaded optimizer; none without offload."""
    if record.options.offload is UNSET:
        return
    copies, updates = ([op for op in record.ops if op.kind == kind] for kind in ("host_copy", "host_kernel"))
    sums = [op for op in record.ops if op.axis == "data" and op.name.startswith(("sum d", "scatter d"))]
    texts = [
        f"{words} {format_seconds(sum(op.exposed_seconds for op in ops))} of {format_seconds(seconds)}"
        for words, ops in (
            ("host copies", copies),
            ("updates on the host", updates),
            ("gradient reductions over data", sums),
        )
        if (seconds := sum(op.seconds for op in ops))
    ]
    if texts:
        yield f"exposed of all steps: {', '.join(texts)}"


def _dropout_text(record: Record) -> str:
    """The dropout of a GPT, which decides whether the activations include masks."""
    share = record.options.dropout
    return "no dropout" if share is UNSET or not share else f"dropout {share:g}"


def memory_warning(record: Record) -> Iterator[str]:
    """The line that says that a training step does not fit in the memory of a device; no line if it fits."""
    if record.seconds_per_iteration is not UNSET and record.fits is False:
        from quadrille.experiments.workloads.memory_advice import MemoryOptions, memory_advice

        where = record.machine.name if record.machine is not None else "the machine"
        kinds, options, gpt = record.memory_bytes_by_kind or {}, record.options, record.workload.gpt
        size = format_bytes(device_bytes(kinds))
        yield f"DOES NOT FIT: a device of {where} has less memory than {size}"
        memory_options = MemoryOptions(
            sequence=gpt.sequence if gpt is not None else 0,
            recompute="none" if options.recompute is UNSET else options.recompute,
            attention="fused" if options.attention is UNSET else options.attention,
            zero=options.zero or 0,
            wide_gradients=options.gradient_bytes == 4 and record.dtype in ("float16", "bfloat16"),
        )
        yield memory_advice(kinds, memory_options)


def _critical_path(path: tuple[PathSegment, ...]) -> str:
    """The critical path by cause, and the ops that have most of it, as text.

    >>> sum_x = PathSegment(op="sum X", seconds=2.0, seconds_by_part={"latency": 0.5, "bandwidth": 1.5})
    >>> _critical_path((PathSegment(op="multiply", seconds=1.0, seconds_by_part={"compute": 1.0}), sum_x, sum_x))
    'critical path: compute 1.00 s, latency 1.00 s, bandwidth 3.00 s; most of it in sum X (4.00 s), multiply (1.00 s)'
    """
    parts: dict[str, float] = {}
    ops: dict[str, float] = {}
    for segment in path:
        ops[segment.op] = ops.get(segment.op, 0.0) + segment.seconds
        for part, seconds in segment.seconds_by_part.items():
            parts[part] = parts.get(part, 0.0) + seconds
    whole = sum(ops.values())
    causes_text = ", ".join(
        f"{part} {format_seconds(parts[part])}" for part in PARTS if parts.get(part, 0.0) > MINOR * whole
    )
    longest_ops = ", ".join(
        f"{op} ({format_seconds(ops[op])})" for op in nlargest(PATH_OPS_SHOWN, ops, key=lambda op: ops[op])
    )
    return f"critical path: {causes_text}; most of it in {longest_ops}"


def _losses(losses: tuple[float | None, ...]) -> str:
    """The loss of each step, as text; the first and the last losses if there are more than `LOSSES_SHOWN`."""
    words = ["not a number" if loss is None else f"{loss:.6g}" for loss in losses]
    if len(words) > LOSSES_SHOWN:
        half = LOSSES_SHOWN // 2
        words = [*words[:half], "…", *words[-half:]]
    return f"loss of each step: {', '.join(words)}"


def throughput(record: Record) -> str:
    """Tokens per second of a GPT, rows per second of an MLP, over all GPUs and per GPU."""
    assert record.seconds_per_iteration is not UNSET
    gpt, mlp = record.workload.gpt, record.workload.mlp
    count = gpt.batch * gpt.sequence if gpt is not None else mlp.rows if mlp is not None else 0
    if not count or not record.seconds_per_iteration:
        return "no rate"
    name = "tokens/s" if gpt is not None else "rows/s"
    rate = count / record.seconds_per_iteration
    return f"{_thousands(rate)} {name}, {_thousands(rate / record.ranks)} per GPU"


def _thousands(number: float) -> str:
    """A number with four digits, in full unless it is absurdly large.

    >>> _thousands(298612.3), _thousands(1.23456), _thousands(1e300)
    ('298,600', '1.235', '1e+300')
    """
    return f"{float(f'{number:.4g}'):,.0f}" if 1000 <= number < LEAST_SCIENTIFIC else f"{number:.4g}"


def _utilisation(record: Record) -> Iterator[str]:
    """The MFU, the HFU and the share of recomputation, as text; FLOP/s alone if no peak is known."""
    model, hardware = record.model_flops_per_second_per_gpu, record.hardware_flops_per_second_per_gpu
    if not model or not hardware:
        return
    again = f"; {100 * (1 - model / hardware):.3g} % of the work is recomputation" if hardware > model else ""
    if not record.percent_of_peak:
        yield f"rate of a GPU: {_rate(model)} of the model, {_rate(hardware)} of the hardware{again}{_no_share(record)}"
        return
    peak = 100 * hardware / record.percent_of_peak
    yield (
        f"MFU {100 * model / peak:.3g} % ({_rate(model)} per GPU), HFU {record.percent_of_peak:.3g} % "
        f"({_rate(hardware)} per GPU) of {_rate(peak)} in {_precision(record)}{again}"
    )


def _precision(record: Record) -> str:
    """The precision of products, whose peak the MFU divides by."""
    products = record.options.products
    return record.dtype if products is UNSET or products == "dtype" else f"{products}, with {record.dtype} beside it"


def _no_share(record: Record) -> str:
    """Why a record with a machine has no share of a peak, as text."""
    if record.machine is None:
        return ""
    return f"; {record.machine.name} gives no peak for {record.dtype}, or a lower peak than the rate that was measured"


def _counted_attention(gpt: GptSizes) -> str:
    """How the rates of a GPT count attention, as text."""
    from quadrille.algorithms.training.flops import full_square_flops, step_flops
    from quadrille.algorithms.training.model_shapes import ModelShape

    sizes = {name: getattr(gpt, name) for name in ("layers", "hidden", "heads", "sequence", "vocabulary", "inner")}
    shape = ModelShape("gpt", **sizes, architecture=_architecture(gpt), experts=_experts(gpt))
    more = full_square_flops(shape, gpt.batch).model / step_flops(shape, gpt.batch).model
    return (
        "attention counts as the causal half that is computed, as in Megatron-Core; "
        f"PaLM's count of the MFU, with full squares, is {more:.4g} times as large"
    )


def _rate(flops_per_second: float) -> str:
    """A rate as text.

    >>> _rate(57e12), _rate(5.29e8)
    ('57 TFLOP/s', '0.529 GFLOP/s')
    """
    tera = flops_per_second >= TERA / 10
    return f"{flops_per_second / (TERA if tera else GIGA):.4g} {'T' if tera else 'G'}FLOP/s"


def pass_order_text(schedule: str, chunks: int) -> str:
    """The order of a pipeline's passes as text, with the chunks of layers of a stage where it has several.

    >>> pass_order_text("interleaved", 4), pass_order_text("1f1b", 1)
    ('interleaved 4', '1f1b')
    """
    return f"{schedule} {chunks}" if chunks > 1 else schedule
