"""From flags to the experiment that they describe: a multiplication, or training steps of a model."""

from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.flags import DEFAULTS, KINDS, OF_TRAINING, MatmulFlags, TrainingFlags
from quadrille.cli.parsing.matmul import parse_matmul

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment


def experiment_of(flags: MatmulFlags) -> "Experiment":
    """The experiment that the flags describe.

    >>> experiment_of(TrainingFlags(matmul="4,4,4")).name, experiment_of(TrainingFlags(gpt="tiny", batch="2")).name
    ('4d', '4d')

    Raises
    ------
    InputError : none or several of a multiplication, a stack of layers and a GPT; naming a flag that cannot be
    """
    if not isinstance(flags, TrainingFlags):
        return parse_matmul(flags)
    kinds = [kind for kind in KINDS if getattr(flags, kind)]
    if not kinds:
        raise InputError(
            "matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512, "
            "or --mlp W0,W1,… or --gpt NAME with --batch; an experiment file has the key matmul, mlp or gpt"
        )
    if len(kinds) > 1:
        raise InputError(f"{' and '.join(f'--{kind}' for kind in kinds)}: one of them is accepted, not {len(kinds)}")
    if kinds != ["matmul"]:
        from quadrille.cli.parsing.training import parse_training

        return parse_training(flags)
    for name in OF_TRAINING:
        if (value := getattr(flags, name)) != getattr(DEFAULTS, name):
            word = "" if value is True else f" {value}"
            raise InputError(f"--{name.replace('_', '-')}{word}: is for --mlp and --gpt: leave it out")
    plain = {name: getattr(flags, name) for name in MatmulFlags.__dataclass_fields__}
    return parse_matmul(MatmulFlags(**plain))
