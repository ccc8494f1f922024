"""From the text of `--jitter` to the noise of a prediction."""

from typing import TYPE_CHECKING, Literal

from quadrille.algorithms.errors import InputError

if TYPE_CHECKING:
    from quadrille.simulator.ranks.jitter import Jitter

KEYS = ("compute", "network", "gpus", "seed")


def parse_jitter(text: str) -> "Jitter | None":
    """The noise that the text describes; None for an empty text and for `none`.

    >>> parse_jitter("compute=0.1,seed=3"), parse_jitter("")
    (Jitter(compute=0.1, network=0.0, seed=3, gpus=0.0), None)

    Raises
    ------
    InputError : an unknown or repeated key, a value that is no number, a sigma outside the accepted range
    """
    if text in ("", "none"):
        return None
    from quadrille.simulator.ranks.jitter import Jitter

    sigmas: dict[str, float] = {}
    gpus: float | Literal["machine"] = 0.0
    seed = 0
    keys = set[str]()
    for word in text.split(","):
        key, _, value = (part.strip() for part in word.partition("="))
        if key not in KEYS:
            raise InputError(
                f"--jitter {text:.80}: key {key!r}: accepted are compute=SIGMA, network=SIGMA, gpus=SIGMA|machine "
                "and seed=S"
            )
        if key in keys:
            raise InputError(f"--jitter {text:.80}: {key} is given twice; each key is accepted once")
        keys.add(key)
        if key == "seed":
            seed = _seed(value)
        elif key == "gpus":
            gpus = "machine" if value == "machine" else _sigma(key, value)
        else:
            sigmas[key] = _sigma(key, value)
    return Jitter(**sigmas, seed=seed, gpus=gpus)


def _seed(text: str) -> int:
    from quadrille.cli.parsing.numbers import whole_number

    return whole_number(text, "--jitter seed", least=0)


def _sigma(key: str, text: str) -> float:
    """The standard deviation in the text; `Jitter` checks its range."""
    try:
        return float(text)
    except ValueError:
        machine = " or machine" if key == "gpus" else ""
        raise InputError(
            f"--jitter {key}={text!r}: a number from 0 to 2{machine} is accepted, such as {key}=0.1"
        ) from None
