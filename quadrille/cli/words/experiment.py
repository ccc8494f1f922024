"""The experiment that words name: a multiplication, or training steps of a model."""

from quadrille.algorithms.errors import InputError
from quadrille.cli.words.matmul import MatmulWords, parse_matmul
from quadrille.cli.words.training import OF_MATMULS, TrainingWords, parse_training
from quadrille.experiments.workloads.experiment import Experiment

KINDS = ("matmul", "mlp", "gpt")
USUAL = TrainingWords()
OF_TRAINING = tuple(
    sorted(set(TrainingWords.__dataclass_fields__) - set(MatmulWords.__dataclass_fields__) - set(KINDS))
)
"""MatmulWords that only training steps have."""


def experiment_of(words: MatmulWords) -> Experiment:
    """The experiment that the words name.

    >>> experiment_of(TrainingWords(matmul="4,4,4")).name, experiment_of(TrainingWords(gpt="tiny", batch="2")).name
    ('4d', '4d')

    Raises
    ------
    InputError : none or several of a multiplication, a stack of layers and a GPT; naming a flag that cannot be
    """
    if not isinstance(words, TrainingWords):
        return parse_matmul(words)
    given = [kind for kind in KINDS if getattr(words, kind)]
    if not given:
        raise InputError(
            "matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512, "
            "or --mlp W0,W1,… or --gpt NAME with --batch"
        )
    if len(given) > 1:
        raise InputError(f"{' and '.join(f'--{kind}' for kind in given)}: one of them is accepted, not {len(given)}")
    if given != ["matmul"]:
        return parse_training(words)
    for name in OF_TRAINING:
        if (value := getattr(words, name)) != getattr(USUAL, name):
            word = "" if value is True else f" {value}"
            raise InputError(f"--{name.replace('_', '-')}{word}: is for --mlp and --gpt: leave it out")
    plain = {name: getattr(words, name) for name in MatmulWords.__dataclass_fields__}
    return parse_matmul(MatmulWords(**plain))


def own_words(words: MatmulWords) -> dict[str, str]:
    """The words that have a say in what is asked for, by name; one that is given or not is `yes` or empty.

    >>> [name for name in own_words(TrainingWords(mlp="4,4")) if name in ("panel", "batch", "matmul")]
    ['batch']
    """
    trains = bool(getattr(words, "mlp", "") or getattr(words, "gpt", ""))
    alien = (*OF_MATMULS,) if trains else ("mlp", "gpt", *OF_TRAINING)
    given = {name: getattr(words, name) for name in words.__dataclass_fields__ if name not in alien}
    return {name: ("yes" if value else "") if isinstance(value, bool) else value for name, value in given.items()}
