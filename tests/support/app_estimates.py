"""The app's estimates beside its predictions, for N drawn settings with experts.

python -m tests.support.app_estimates SEED N
"""

import statistics
import sys
from collections.abc import Iterator
from random import Random

from quadrille.app import answers
from quadrille.app.settings import Settings

MODELS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")
MACHINES = ("h100-superpod", "gb200-nvl72", "h100-superpod")


def drawn_settings(draw: Random) -> Iterator[Settings]:
    """Settings with experts on 64 to 256 GPUs, without end; some are refused."""
    while True:
        gpus = draw.choice((64, 128, 256))
        yield Settings(
            gpus=gpus,
            model=draw.choice(MODELS),
            machine=draw.choice(MACHINES),
            tensor=draw.choice((1, 1, 2)),
            pipeline=draw.choice((1, 2, 4, 8)),
            expert=draw.choice((2, 4, 8, 16, 32, 64)),
            batch=gpus * draw.choice((2, 4)),
            micro_batch=draw.choice((1, 2)),
            zero=draw.choice((0, 1)),
            scheme="megatron+sequence",
            overlap=draw.choice(((), ("oar", "ors", "oag"))),
            recompute=draw.choice(("none", "full")),
            network=draw.choice((0.5, 1.0)),
            more=draw.choice(("", "", "--expert-load zipf:0.5")),
        )


def errors(seed: int, number: int) -> Iterator[tuple[float, str]]:
    """The relative error of each estimate, and the command line of its setting."""
    left = number
    for settings in drawn_settings(Random(seed)):
        if not left:
            return
        words = settings.words()
        estimate, prediction = (answers.reply(kind, words) for kind in ("estimate", "prediction"))
        if isinstance(estimate, answers.Answer) and isinstance(prediction, answers.Answer):
            left -= 1
            yield estimate.seconds / prediction.seconds - 1, " ".join(words)


def main(seed: str, number: str) -> None:
    """Print each error, and then the median, mean and worst."""
    seen = []
    for error, words in errors(int(seed), int(number)):
        seen.append(error)
        print(f"{error:+.1%}  quadrille simulate {words}", flush=True)
    sizes = [abs(error) for error in seen]
    print(
        f"{len(seen)}: median {statistics.median(sizes):.1%}, mean {statistics.mean(sizes):.1%}, worst {max(sizes):.1%}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
