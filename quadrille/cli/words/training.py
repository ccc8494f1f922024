"""The words that name training steps, and the experiment that they come to."""

from dataclasses import fields
from math import isfinite
from typing import Any, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.schedule.short_names import find_dtype
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.recompute import find_attention, find_recompute
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.cli.words.flags import OF_MATMULS, USUAL, TrainingWords
from quadrille.cli.words.matmul import parse_execution, parse_rank_order
from quadrille.cli.words.numbers import one_of, whole_number
from quadrille.experiments.workloads.training import PROBLEM_FLAGS, TrainingExperiment

MOST_WIDTHS = 10_000


def parse_training(words: TrainingWords) -> TrainingExperiment:
    """The training steps that the words name, checked as far as one can without ranks or a machine.

    >>> parse_training(TrainingWords(mlp="7,11,5", batch="6", grid="z=2,x=3")).grid.size
    6

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    for name in OF_MATMULS:
        usual = getattr(USUAL, name)
        if (value := getattr(words, name)) != usual:
            raise InputError(f"{_flag(name)} {value}: is for --matmul; --{_which(words)} trains a model: leave it out")
    shape = find_shape(words.gpt) if words.gpt else None
    problem = _mlp(words) if shape is None else _gpt(words, shape)
    return TrainingExperiment(
        problem,
        parse_grid(words.grid, parse_rank_order(words.order)),
        find_scheme(words.scheme, sequence_parallel=words.sequence_parallel),
        parse_execution(words),
        shape,
        whole_number(words.keep_first, "--keep-first", least=0),
        words.gemm_layouts,
    )


def _which(words: TrainingWords) -> str:
    return "gpt" if words.gpt else "mlp"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _gpt(words: TrainingWords, shape: ModelShape) -> Gpt:
    return gpt_from_shape(
        shape,
        _batch(words, "sequences"),
        **_common(words, shape.hidden),
        micro_batch=whole_number(words.micro_batch, "--micro-batch") if words.micro_batch else None,
        interleave=whole_number(words.interleave, "--interleave"),
        zero=whole_number(words.zero, "--zero", least=0, most=3),
        gradient_bytes=int(one_of(words.gradient_bytes, "gradient-bytes", ("4", "2"))),
        attention=find_attention(words.attention),
        recompute=find_recompute(words.recompute),
    )


def _mlp(words: TrainingWords) -> Mlp:
    usual, names = TrainingWords(), {field.name for field in fields(Mlp)}
    values = {name: getattr(words, name) for name in PROBLEM_FLAGS if getattr(words, name) != getattr(usual, name)}
    for name, value in values.items():
        if name not in names:
            raise InputError(f"{_flag(name)} {value}: is for --gpt; a stack of linear layers has no such choice")
    if words.keep_first != usual.keep_first:
        raise InputError(f"--keep-first {words.keep_first}: is for --gpt; --gathered keep keeps all of a stack's")
    own = {name: whole_number(value, _flag(name)) for name, value in values.items()}
    texts = [word.strip() for word in words.mlp.split(",")]
    if len(texts) > MOST_WIDTHS:
        raise InputError(f"--mlp has {len(texts)} widths: at most {MOST_WIDTHS} are accepted")
    widths = tuple(whole_number(word, f"--mlp {words.mlp[:80]}: width") for word in texts)
    return Mlp(widths, _batch(words, "rows"), **_common(words, max(widths)), **own)  # type: ignore[arg-type]


def _batch(words: TrainingWords, of: str) -> int:
    if not words.batch:
        raise InputError(f"batch is missing: --{_which(words)} needs --batch N, the {of} of one step over all ranks")
    return whole_number(words.batch, "--batch")


def _common(words: TrainingWords, width: int) -> dict[str, Any]:
    """What both problems have."""
    rate = _number(words.learning_rate, "--learning-rate", above=True) if words.learning_rate else default_rate(width)
    return {
        "dtype": find_dtype(words.dtype or "float32"),
        "steps": whole_number(words.steps, "--steps"),
        "gathered": one_of(words.gathered, "gathered", get_args(Gathered)),
        "adam": Adam(rate=rate, clip=_number(words.clip, "--clip")),
    }


def _number(text: str, flag: str, *, above: bool = False) -> float:
    """The number in `text`.

    Parameters
    ----------
    above : whether 0 itself is none

    Raises
    ------
    InputError : none, or one below 0
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0 or (above and number == 0):
        raise InputError(f"{flag} {text!r}: a number {'above' if above else 'from'} 0 is accepted")
    return number
