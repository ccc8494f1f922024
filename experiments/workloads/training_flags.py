"""The flags of training steps, parsed in this one place, and the experiment that they name."""

from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt, gpt_of
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.model_words import find_shape
from quadrille.algorithms.training.models import ModelShape
from quadrille.algorithms.training.recompute import find_recompute
from quadrille.algorithms.training.schemes import find_scheme
from quadrille.experiments.options.machine_flags import MachineFlags, chosen_machine
from quadrille.experiments.options.rank_orders import parse_rank_order
from quadrille.experiments.options.values import one_of, whole_number
from quadrille.experiments.workloads.gemm_times import WRITTEN
from quadrille.experiments.workloads.matmul import Flags, parse_manner
from quadrille.experiments.workloads.training import OF_GPTS, TrainingExperiment

OF_MATMULS = {"matmul": "", "algorithm": "4d", "passes": "forward", "panel": "256", "transposed": "none"}
"""Flags that name a multiplication alone, and their defaults."""
MOST_WIDTHS = 10_000
USUAL_RATE, USUAL_WIDTH = 1e-3, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags(Flags):
    """The flags that name training steps, as they were typed; the defaults are those of the command line.

    Without a dtype it is float32, but for a GPT predicted on a machine that
    gives a speed for bfloat16: there mixed precision is what is trained with.
    """

    mlp: str = ""
    gpt: str = ""
    batch: str = ""
    scheme: str = "4d"
    sequence_parallel: bool = False
    zero: str = "0"
    micro_batch: str = ""
    interleave: str = "1"
    recompute: str = "selective"
    gradient_bytes: str = "4"
    steps: str = "1"
    learning_rate: str = ""
    clip: str = "0"
    keep_first: str = "0"
    gemm_layouts: str = WRITTEN


def parse_training(flags: TrainingFlags) -> TrainingExperiment:
    """The training steps that the flags name, checked as far as one can without ranks or a machine.

    >>> parse_training(TrainingFlags(mlp="7,11,5", batch="6", grid="z=2,x=3")).grid.size
    6

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    for name, usual in OF_MATMULS.items():
        if (value := getattr(flags, name)) != usual:
            raise InputError(f"{_flag(name)} {value}: is for --matmul; --{_which(flags)} trains a model: leave it out")
    shape = find_shape(flags.gpt) if flags.gpt else None
    problem = _mlp(flags) if shape is None else _gpt(flags, shape)
    experiment = TrainingExperiment(
        problem,
        find_scheme(flags.scheme, sequence_parallel=flags.sequence_parallel),
        flags.sequence_parallel,
        parse_grid(flags.grid, parse_rank_order(flags.order)),
        parse_manner(flags),
        shape,
        whole_number(flags.keep_first, "--keep-first", least=0),
        flags.gemm_layouts,
    )
    experiment.scheme.check(experiment.grid)
    return experiment


def _which(flags: TrainingFlags) -> str:
    return "gpt" if flags.gpt else "mlp"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _gpt(flags: TrainingFlags, shape: ModelShape) -> Gpt:
    return gpt_of(
        shape,
        _batch(flags, "sequences"),
        **_common(flags, shape.hidden),
        micro_batch=whole_number(flags.micro_batch, "--micro-batch") if flags.micro_batch else None,
        interleave=whole_number(flags.interleave, "--interleave"),
        zero=whole_number(flags.zero, "--zero", least=0, most=3),
        gradient_bytes=int(one_of(flags.gradient_bytes, "gradient-bytes", ("4", "2"))),
        recompute=find_recompute(flags.recompute),
    )


def _mlp(flags: TrainingFlags) -> Mlp:
    usual, known = TrainingFlags(), {one.name for one in fields(Mlp)}
    given = {name: getattr(flags, name) for name in OF_GPTS if getattr(flags, name) != getattr(usual, name)}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{_flag(name)} {value}: is for --gpt; a stack of linear layers has no such choice")
    if flags.keep_first != usual.keep_first:
        raise InputError(f"--keep-first {flags.keep_first}: is for --gpt; --gathered keep keeps all of a stack's")
    own = {name: whole_number(value, _flag(name)) for name, value in given.items()}
    words = [word.strip() for word in flags.mlp.split(",")]
    if len(words) > MOST_WIDTHS:
        raise InputError(f"--mlp has {len(words)} widths: at most {MOST_WIDTHS} are accepted")
    widths = tuple(whole_number(word, f"--mlp {flags.mlp[:80]}: width") for word in words)
    return Mlp(widths, _batch(flags, "rows"), **_common(flags, max(widths)), **own)  # type: ignore[arg-type]


def _batch(flags: TrainingFlags, of: str) -> int:
    if not flags.batch:
        raise InputError(f"batch is missing: --{_which(flags)} needs --batch N, the {of} of one step over all ranks")
    return whole_number(flags.batch, "--batch")


def usual_rate(width: int) -> float:
    """Of learning: Adam's 0.001, and less in layers wider than 128, whose sums have more terms that all move.

    >>> usual_rate(64), usual_rate(1280)
    (0.001, 0.0001)
    """
    return USUAL_RATE * min(1.0, USUAL_WIDTH / width)


def _common(flags: TrainingFlags, width: int) -> dict[str, Any]:
    """What both problems have."""
    rate = _number(flags.learning_rate, "--learning-rate", above=True) if flags.learning_rate else usual_rate(width)
    return {
        "dtype": one_of(flags.dtype or "float32", "dtype", get_args(DType)),
        "steps": whole_number(flags.steps, "--steps"),
        "gathered": one_of(flags.gathered, "gathered", get_args(Gathered)),
        "adam": Adam(rate=rate, clip=_number(flags.clip, "--clip")),
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
        found = float(text)
    except ValueError:
        found = -1.0
    if not isfinite(found) or found < 0 or (above and found == 0):
        raise InputError(f"{flag} {text!r}: a number {'above' if above else 'from'} 0 is accepted")
    return found


def with_usual_dtype(flags: Flags, on: MachineFlags) -> Flags:
    """The flags with bfloat16 where a GPT without a dtype is predicted on a machine that gives a speed for it."""
    if not isinstance(flags, TrainingFlags) or flags.dtype:
        return flags
    known = chosen_machine(replace(on, settings=())).device.peak_flops_per_second if flags.gpt and on.machine else {}
    return replace(flags, dtype="bfloat16" if "bfloat16" in known else "float32")
