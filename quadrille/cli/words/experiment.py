"""The experiment that words name: a multiplication, or training steps of a model."""

from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.cli.words.flags import KINDS, OF_TRAINING, USUAL, MatmulWords, TrainingWords
from quadrille.cli.words.matmul import parse_matmul

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment


def experiment_of(words: MatmulWords) -> "Experiment":
    """The experiment that the words name.

    >>> experiment_of(TrainingWords(matmul="4,4,4")).name, experiment_of(TrainingWords(gpt="tiny", batch="2")).name
    ('4d', '4d')

    Raises
    ------
    InputError : none or several of a multiplication, a stack of layers and a GPT; naming a flag that cannot be
    """
    if not isinstance(words, TrainingWords):
        return parse_matmul(words)
    kinds = [kind for kind in KINDS if getattr(words, kind)]
    if not kinds:
        raise InputError(
            "matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512, "
            "or --mlp W0,W1,… or --gpt NAME with --batch"
        )
    if len(kinds) > 1:
        raise InputError(f"{' and '.join(f'--{kind}' for kind in kinds)}: one of them is accepted, not {len(kinds)}")
    if kinds != ["matmul"]:
        from quadrille.cli.words.training import parse_training

        return parse_training(words)
    for name in OF_TRAINING:
        if (value := getattr(words, name)) != getattr(USUAL, name):
            word = "" if value is True else f" {value}"
            raise InputError(f"--{name.replace('_', '-')}{word}: is for --mlp and --gpt: leave it out")
    plain = {name: getattr(words, name) for name in MatmulWords.__dataclass_fields__}
    return parse_matmul(MatmulWords(**plain))
