"""Why the simulation and the analytical model rank grids differently: the costs that the model leaves out.

The model charges the bytes of a layer's collectives at a ring's full bandwidth.
A simulated step also takes

    compute      products and all other local work, whose shapes differ from grid to grid
    latency      of every step of a ring
    transfer     bytes that the model leaves out (embedding, logits, loss, vectors), and
                 rates other than the table's: contention, rings through one NIC
    overlap      less what runs beside compute
    waiting      for the last member, and between ops

Each cause by itself is added to the model's seconds, and Kendall's tau with the
simulated order says how much of the difference is its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.agreement import kendall_tau

MOSTLY, IN_PART = 0.5, 0.2
"""Kendall's tau of two orders that mostly agree, and of two that agree in part."""
NOTEWORTHY = 0.05
"""Change of Kendall's tau that is worth a line."""
ONE_ORDER = "one grid, or grids that all take as long: there is no order to compare"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cost that the model leaves out, over all simulated grids.

    Parameters
    ----------
    least, most : smallest and largest time that the cost adds to a grid [s]
    tau : Kendall's tau of the model's seconds plus this cost and the simulated seconds
    """

    name: str
    least: float
    most: float
    tau: float | None


def causes(modelled: Sequence[float], steps: Sequence[TrainingStep]) -> list[Cause]:
    """The causes, the best explanation first."""
    added = {
        "compute": [step.compute for step in steps],
        "latency": [step.latency for step in steps],
        "transfer": [step.transfer - model for step, model in zip(steps, modelled, strict=True)],
        "overlap": [-step.hidden for step in steps],
        "waiting": [step.waiting for step in steps],
    }
    return _by_tau(added, modelled, steps)


def causes_beside(modelled: Sequence[TrainingStep], steps: Sequence[TrainingStep]) -> list[Cause]:
    """The causes for a model that has all parts of a step but overlap, and prices them differently."""
    pairs = list(zip(modelled, steps, strict=True))
    added = {
        "compute": [step.compute - model.compute for model, step in pairs],
        "communication": [step.latency + step.transfer - model.transfer for model, step in pairs],
        "overlap": [-step.hidden for step in steps],
        "waiting": [step.waiting - model.waiting for model, step in pairs],
    }
    return _by_tau(added, [model.seconds for model in modelled], steps)


def _by_tau(added: Mapping[str, list[float]], modelled: Sequence[float], steps: Sequence[TrainingStep]) -> list[Cause]:
    seconds = [step.seconds for step in steps]
    ranked_causes = [
        Cause(name, min(values), max(values), kendall_tau(np.add(modelled, values).tolist(), seconds))
        for name, values in added.items()
    ]
    return sorted(ranked_causes, key=lambda cause: -(cause.tau if cause.tau is not None else -2.0))


def in_words(
    ranked_causes: Sequence[Cause],
    tau: float | None,
    steps: Sequence[TrainingStep],
    choices: Choices,
    peak_flops_per_second: float | None = None,
) -> list[str]:
    """The causes in words, a line each; the first line says whether the orders agree."""
    efficiencies = [step.compute_efficiency(peak_flops_per_second) for step in steps]
    reached = [efficiency for efficiency in efficiencies if efficiency is not None]
    if tau is None:
        return [ONE_ORDER]
    lines = [_agreement(tau)]
    lines += [
        f"{_what(cause, steps, choices, reached)}: with it the model {_ranks_in_words(cause.tau)}"
        for cause in ranked_causes
        if cause.tau is not None and cause.tau - tau >= NOTEWORTHY
    ]
    if len(lines) == 1 and tau < 1:
        spread = max(ranked_causes, key=lambda cause: cause.most - cause.least)
        lines.append(f"no single cause explains it; the largest difference is {_what(spread, steps, choices, reached)}")
    return lines


def in_short(ranked_causes: Sequence[Cause], tau: float | None) -> list[str]:
    """The result of `causes_beside` in words, a line each; the first line says whether the orders agree."""
    if tau is None:
        return [ONE_ORDER]
    explains = [cause for cause in ranked_causes if cause.tau is not None and cause.tau - tau >= NOTEWORTHY]
    return [_agreement(tau)] + [
        f"{cause.name} is simulated otherwise ({_span(cause)}): with it the model {_ranks_in_words(cause.tau)}"
        for cause in explains
        if cause.tau is not None
    ]


def _agreement(tau: float) -> str:
    if tau == 1:
        return "both orders are the same"
    word = "mostly agree" if tau >= MOSTLY else "agree in part" if tau >= IN_PART else "do not agree"
    return f"the orders {word}"


def _ranks_in_words(tau: float) -> str:
    """How an order with this Kendall's tau compares with the simulation's."""
    if tau == 1:
        return "ranks as the simulation does"
    degree = "mostly" if tau >= MOSTLY else "in part" if tau >= IN_PART else "hardly"
    return f"ranks {degree} as the simulation does"


def _what(cause: Cause, steps: Sequence[TrainingStep], choices: Choices, reached: Sequence[float]) -> str:
    """A cause with its numbers; `reached` are shares of the peak."""
    span = _span(cause)
    match cause.name:
        case "compute":
            rates = f", products at {100 * min(reached):.0f} to {100 * max(reached):.0f} % of peak" if reached else ""
            return f"compute is left out of the model ({span}{rates}, by the shapes of the local products)"
        case "latency":
            return f"latency is left out of the model ({span}): long rings have many steps"
        case "transfer":
            shared = [step.contention for step in steps]
            one_nic = f"; a ring of {choices} leaves a node by one NIC" if choices.implementation == "own" else ""
            return (
                f"transfers take other than the table says ({span}; sharing links adds {format_seconds(min(shared))} "
                f"to {format_seconds(max(shared))}{one_nic}), and the model leaves out embedding, logits and vectors"
            )
        case "overlap":
            return f"overlap hides communication ({span})"
        case _:
            return f"ranks wait for each other ({span})"


def _span(cause: Cause) -> str:
    least, most = format_seconds(abs(cause.least)), format_seconds(abs(cause.most))
    return f"{_sign(cause.least)}{least} to {_sign(cause.most)}{most}"


def _sign(value: float) -> str:
    return "-" if value < 0 else ""
