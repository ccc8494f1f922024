"""The words of `sweep --search`: from text to the options of a search."""

from math import inf
from typing import Any, cast, get_args

from quadrille.algorithms.errors import InputError
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
    points, seconds, budget = inf, inf, values["budget"]
    if budget.endswith("s"):
        seconds = whole_number(budget[:-1], "--budget")
    elif budget:
        points = whole_number(budget, "--budget")
    return SearchOptions(
        objectives=cast(tuple[Objective, ...], tuple(dict.fromkeys(objectives))),
        points=points,
        seconds=seconds,
        most_gpus=whole_number(values["most_gpus"], "--most-gpus") if values["most_gpus"] else None,
        seed=whole_number(values["search_seed"], "--search-seed", least=0, most=MOST_SEED),
    )
