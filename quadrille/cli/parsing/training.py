"""From flags to a training experiment: model or stack of layers, batch, grid, scheme and optimizer."""

from dataclasses import fields
from math import isfinite
from typing import Any, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.schedule.short_names import find_dtype, flag_word
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.context import find_context_form
from quadrille.algorithms.training.experts import parse_expert_load
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.offload import parse_offload
from quadrille.algorithms.training.recompute import find_attention, find_recompute
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.small_numbers import find_products
from quadrille.algorithms.training.sparsity import PruneMethod
from quadrille.cli.parsing.flags import DEFAULTS, OF_MATMULS, TrainingFlags
from quadrille.cli.parsing.matmul import parse_execution, parse_rank_order
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.experiments.workloads.training import PROBLEM_FLAGS, TrainingExperiment

MOST_WIDTHS = 10_000


def parse_training(flags: TrainingFlags) -> TrainingExperiment:
    """The training experiment that the flags describe, checked as far as possible without ranks or a machine.

    >>> parse_training(TrainingFlags(mlp="7,11,5", batch="6", grid="z=2,x=3")).grid.size
    6

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    for name in OF_MATMULS:
        usual = getattr(DEFAULTS, name)
        if (value := getattr(flags, name)) != usual:
            raise InputError(
                f"{flag_word(name)} {value}: is for --matmul; --{_which(flags)} trains a model: leave it out"
            )
    shape = find_shape(flags.gpt, parse_sequence(flags.sequence)) if flags.gpt else None
    if shape is not None:
        shape.check_approximations(accepted=flags.approximate)
    problem = _mlp(flags) if shape is None else _gpt(flags, shape)
    return TrainingExperiment(
        problem,
        parse_grid(flags.grid, parse_rank_order(flags.order)),
        find_scheme(flags.scheme, sequence_parallel=flags.sequence_parallel),
        parse_execution(flags),
        shape,
        whole_number(flags.keep_first, "--keep-first", least=0),
        flags.gemm_layouts,
        parse_software_text(flags.software),
    )


def parse_software_text(text: str) -> str:
    """The text of --software with defaults left out, checked; empty for no text."""
    if not text:
        return ""
    from quadrille.algorithms.training.megatron_software import parse_software  # few predictions need it

    return str(parse_software(text))


def parse_sequence(text: str) -> int | None:
    """The tokens of a sequence as typed; None for the model's own."""
    return whole_number(text, "--sequence") if text else None


def _which(flags: TrainingFlags) -> str:
    return "gpt" if flags.gpt else "mlp"


def _gpt(flags: TrainingFlags, shape: ModelShape) -> Gpt:
    return gpt_from_shape(
        shape,
        _batch(flags, "sequences"),
        **_common(flags, shape.hidden),
        micro_batch=whole_number(flags.micro_batch, "--micro-batch") if flags.micro_batch else None,
        interleave=whole_number(flags.interleave, "--interleave"),
        **_pipeline(flags),
        **parse_pruning(flags.sparsity, flags.prune, sparse_states=flags.sparse_states),
        zero=whole_number(flags.zero, "--zero", least=0, most=3),
        products=find_products(flags.products),
        fp8_param_gather=flags.fp8_param_gather,
        gradient_bytes=int(one_of(flags.gradient_bytes, "gradient-bytes", ("4", "2"))),
        attention=find_attention(flags.attention),
        recompute=find_recompute(flags.recompute),
        context_parallel=find_context_form(flags.context_parallel),
        dropout=_number(flags.dropout, "--dropout"),
        expert_load=parse_expert_load(flags.expert_load),
    )


def _mlp(flags: TrainingFlags) -> Mlp:
    usual, names = TrainingFlags(), {field.name for field in fields(Mlp)}
    values = {name: getattr(flags, name) for name in PROBLEM_FLAGS if getattr(flags, name) != getattr(usual, name)}
    for name, value in values.items():
        if name not in names:
            raise InputError(f"{flag_word(name)} {value}: is for --gpt; a stack of linear layers has no such choice")
    if flags.approximate:
        raise InputError("--approximate: is for --gpt; a stack of linear layers has no traits: leave it out")
    if flags.sequence:
        raise InputError(f"--sequence {flags.sequence}: is for --gpt; a stack of linear layers has rows: leave it out")
    if flags.keep_first != usual.keep_first:
        raise InputError(f"--keep-first {flags.keep_first}: is for --gpt; --gathered keep keeps all of a stack's")
    read = _pipeline(flags) | parse_pruning(flags.sparsity, flags.prune, sparse_states=flags.sparse_states)
    elsewhere = {*read, "offload"}
    own = {name: whole_number(value, flag_word(name)) for name, value in values.items() if name not in elsewhere}
    texts = [word.strip() for word in flags.mlp.split(",")]
    if len(texts) > MOST_WIDTHS:
        raise InputError(f"--mlp has {len(texts)} widths: at most {MOST_WIDTHS} are accepted")
    widths = tuple(whole_number(word, f"--mlp {flags.mlp[:80]}: width") for word in texts)
    return Mlp(widths, _batch(flags, "rows"), **_common(flags, max(widths)), **own, **read)  # type: ignore[arg-type]


def _pipeline(flags: TrainingFlags) -> dict[str, Any]:
    """The order of passes on a pipeline stage, as arguments of either model."""
    return {
        "pipeline_schedule": one_of(flags.pipeline_schedule, "pipeline-schedule", get_args(PipelineSchedule)),
        "pipeline_limit": whole_number(flags.pipeline_limit, "--pipeline-limit") if flags.pipeline_limit else 0,
        "stages": tuple(
            whole_number(word.strip(), "--stages: layers") for word in flags.stages.split(",") if flags.stages
        ),
    }


def parse_pruning(sparsity: str, prune: str, *, sparse_states: bool) -> dict[str, Any]:
    """How a model is pruned, as arguments of either model.

    Raises
    ------
    InputError : a sparsity outside [0, 1), an unknown method, or a choice of pruning without a sparsity
    """
    try:
        share = float(sparsity)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InputError(f"--sparsity {sparsity!r}: a number from 0 and below 1 is accepted")
    method = one_of(prune or "magnitude", "prune", get_args(PruneMethod))
    if not share and (prune or sparse_states):
        chosen = f"--prune {prune}" if prune else "--sparse-states"
        raise InputError(f"{chosen}: nothing is pruned without --sparsity S; a number above 0 and below 1 is accepted")
    return {"sparsity": share, "prune": method, "sparse_states": sparse_states}


def _batch(flags: TrainingFlags, of: str) -> int:
    if not flags.batch:
        raise InputError(f"batch is missing: --{_which(flags)} needs --batch N, the {of} of one step over all ranks")
    return whole_number(flags.batch, "--batch")


def _common(flags: TrainingFlags, width: int) -> dict[str, Any]:
    """The arguments that a GPT and a stack of linear layers have in common."""
    rate = _number(flags.learning_rate, "--learning-rate", above=True) if flags.learning_rate else default_rate(width)
    return {
        "dtype": find_dtype(flags.dtype or "float32"),
        "steps": whole_number(flags.steps, "--steps"),
        "gathered": one_of(flags.gathered, "gathered", get_args(Gathered)),
        "adam": Adam(rate=rate, clip=_number(flags.clip, "--clip")),
        "offload": parse_offload(flags.offload),
    }


def _number(text: str, flag: str, *, above: bool = False) -> float:
    """The number in the text.

    Parameters
    ----------
    above : whether the number must be above 0, not 0 itself

    Raises
    ------
    InputError : no number, or a number below 0
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0 or (above and number == 0):
        raise InputError(f"{flag} {text!r}: a number {'above' if above else 'from'} 0 is accepted")
    return number
