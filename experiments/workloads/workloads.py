"""What `run`, `simulate` and `schedule` may be asked for: a multiplication, or training steps of a model."""

from quadrille.algorithms.errors import InputError
from quadrille.experiments.workloads.matmul import Experiment, Flags, parse_experiment
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_flags import OF_MATMULS, TrainingFlags, parse_training

AnyExperiment = Experiment | TrainingExperiment
KINDS = ("matmul", "mlp", "gpt")
USUAL = TrainingFlags()
OF_TRAINING = tuple(sorted(set(TrainingFlags.__dataclass_fields__) - set(Flags.__dataclass_fields__) - set(KINDS)))
"""Flags that only training steps have."""


def experiment_of(flags: Flags) -> AnyExperiment:
    """The experiment that the flags name.

    >>> experiment_of(TrainingFlags(matmul="4,4,4")).name, experiment_of(TrainingFlags(gpt="tiny", batch="2")).name
    ('4d', '4d')

    Raises
    ------
    InputError : none or several of a multiplication, a stack of layers and a GPT; naming a flag that cannot be
    """
    if not isinstance(flags, TrainingFlags):
        return parse_experiment(flags)
    given = [kind for kind in KINDS if getattr(flags, kind)]
    if not given:
        raise InputError(
            "matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512, "
            "or --mlp W0,W1,… or --gpt NAME with --batch"
        )
    if len(given) > 1:
        raise InputError(f"{' and '.join(f'--{kind}' for kind in given)}: one of them is accepted, not {len(given)}")
    if given != ["matmul"]:
        return parse_training(flags)
    for name in OF_TRAINING:
        if (value := getattr(flags, name)) != getattr(USUAL, name):
            word = "" if value is True else f" {value}"
            raise InputError(f"--{name.replace('_', '-')}{word}: is for --mlp and --gpt: leave it out")
    plain = {name: getattr(flags, name) for name in Flags.__dataclass_fields__}
    return parse_experiment(Flags(**plain))


def own_flags(flags: Flags) -> dict[str, str]:
    """The flags that have a say in what is asked for, by name; one that is given or not is `yes` or empty.

    >>> [name for name in own_flags(TrainingFlags(mlp="4,4")) if name in ("panel", "batch", "matmul")]
    ['batch']
    """
    trains = bool(getattr(flags, "mlp", "") or getattr(flags, "gpt", ""))
    alien = (*OF_MATMULS,) if trains else ("mlp", "gpt", *OF_TRAINING)
    given = {name: getattr(flags, name) for name in flags.__dataclass_fields__ if name not in alien}
    return {name: ("yes" if value else "") if isinstance(value, bool) else value for name, value in given.items()}
