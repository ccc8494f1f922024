"""The words of `sweep --search`: from text to the options of a search."""

from math import inf
from typing import Any, cast, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import MOST_DIGITS, parse_integer
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.experiments.sweep.point_search import MOST_SEED, Objective, SearchOptions


def parse_search(values: dict[str, Any]) -> SearchOptions | None:
    """The options of a search; None without `--search`.

    >>> flags = {"search": "time,memory", "budget": "40", "most_gpus": "", "search_seed": "0"}
    >>> options = parse_search(flags)
    >>> options.objectives, options.points
    (('time', 'memory'), 40)

    Raises
    ------
    InputError : an unknown objective, a value that is no number, or a flag of a search without `--search`
    """
    if not values["search"]:
        for name, default in (("budget", ""), ("most_gpus", ""), ("search_seed", "0")):
            if values[name] != default:
                raise InputError(f"--{name.replace('_', '-')} {values[name]}: --search OBJECTIVE,… is needed")
        return None
    objectives = [one_of(word.strip(), "--search", get_args(Objective)) for word in values["search"].split(",")]
    points, seconds = parse_budget(values["budget"]) if values["budget"] else (inf, inf)
    return SearchOptions(
        objectives=cast(tuple[Objective, ...], tuple(dict.fromkeys(objectives))),
        points=points,
        seconds=seconds,
        most_gpus=whole_number(values["most_gpus"], "--most-gpus") if values["most_gpus"] else None,
        seed=whole_number(values["search_seed"], "--search-seed", least=0, most=MOST_SEED),
    )


def parse_budget(text: str) -> tuple[float, float]:
    """The most points that a search asks, and the time after which it asks no more [s].

    >>> parse_budget("200"), parse_budget("600s")
    ((200, inf), (inf, 600))

    Parameters
    ----------
    text : a number of points, or a number of seconds that ends in `s`

    Raises
    ------
    InputError : anything else
    """
    number = parse_integer(text.removesuffix("s")) if len(text) <= MOST_DIGITS else None
    if number is None or number < 1:
        accepted = "a number of points, such as 200, or of seconds, such as 600s, is accepted"
        raise InputError(f"--budget {text[:MOST_DIGITS]!r}: {accepted}")
    return (inf, number) if text.endswith("s") else (number, inf)
