"""Causes of disagreement between the analytical ranking and the simulated ranking: costs that the model leaves out.

The communication model counts the bytes of a layer's collectives at a ring's full
bandwidth.  A simulated step also includes

    compute      products and all other local work, whose shapes differ from grid to grid
    latency      the latency of every step of a ring
    transfer     bytes that the model leaves out (embedding, logits, loss, vectors), and
                 other rates than the table's: contention, rings through one NIC
    overlap      minus the communication that overlaps local work
    waiting      waiting for the last member of a group, and idle time between ops

Each cause alone is added to the model's times.  Kendall's tau with the simulated order
then says how much of the disagreement this cause explains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.kendall_tau import kendall_tau

MOSTLY_AGREE, PARTLY_AGREE = 0.5, 0.2
"""Kendall's tau from which two orders mostly agree, and from which they agree in part."""
NOTEWORTHY = 0.05
"""Change of Kendall's tau that is worth a line."""
ONE_ORDER = "there is one grid, or all grids take equally long: there is no order to compare"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cost that the model leaves out, over all simulated grids.

    Parameters
    ----------
    name : name of the cost
    least, most : smallest and largest time that the cost adds to a grid [s]
    tau : Kendall's tau of the model's seconds plus this cost and the simulated seconds
    """

    name: str
    least: float
    most: float
    tau: float | None


def causes_of_communication_model(modelled: Sequence[float], steps: Sequence[TrainingStep]) -> list[Cause]:
    """The causes for the communication model, the best explanation first.

    Parameters
    ----------
    modelled : time of each grid by the communication model [s]
    steps : simulated step on each grid
    """
    added_seconds = {
        "compute": [step.compute for step in steps],
        "latency": [step.latency for step in steps],
        "transfer": [step.transfer - model for step, model in zip(steps, modelled, strict=True)],
        "overlap": [-step.hidden for step in steps],
        "waiting": [step.waiting for step in steps],
    }
    return _sorted_by_tau(added_seconds, modelled, steps)


def causes_of_closed_form(modelled: Sequence[TrainingStep], steps: Sequence[TrainingStep]) -> list[Cause]:
    """The causes for the closed-form model, which has all parts of a step, the best explanation first.

    Parameters
    ----------
    modelled : step of each configuration by the closed form
    steps : simulated step of each configuration
    """
    pairs = list(zip(modelled, steps, strict=True))
    added_seconds = {
        "compute": [step.compute - model.compute for model, step in pairs],
        "communication": [step.latency + step.transfer - model.transfer for model, step in pairs],
        "overlap": [model.hidden - step.hidden for model, step in pairs],
        "waiting": [step.waiting - model.waiting for model, step in pairs],
    }
    return _sorted_by_tau(added_seconds, [model.seconds for model in modelled], steps)


def _sorted_by_tau(
    added_seconds: Mapping[str, list[float]], modelled: Sequence[float], steps: Sequence[TrainingStep]
) -> list[Cause]:
    seconds = [step.seconds for step in steps]
    ranked_causes = [
        Cause(name, min(values), max(values), kendall_tau(np.add(modelled, values).tolist(), seconds))
        for name, values in added_seconds.items()
    ]
    return sorted(ranked_causes, key=lambda cause: -(cause.tau if cause.tau is not None else -2.0))


def explanation_lines(
    ranked_causes: Sequence[Cause],
    tau: float | None,
    steps: Sequence[TrainingStep],
    choices: Choices,
    peak_flops_per_second: float | None = None,
) -> list[str]:
    """The causes as text, one line for each; the first line says whether the orders agree.

    Parameters
    ----------
    ranked_causes : causes, the best explanation first
    tau : Kendall's tau of the model's order and the simulated order
    steps : simulated steps
    choices : collectives of the steps
    peak_flops_per_second : peak rate of a GPU [flop/s]; None if unknown
    """
    efficiencies = [step.compute_efficiency(peak_flops_per_second) for step in steps]
    known_efficiencies = [efficiency for efficiency in efficiencies if efficiency is not None]
    if tau is None:
        return [ONE_ORDER]
    lines = [_agreement_text(tau)]
    lines += [
        f"{_cause_text(cause, steps, choices, known_efficiencies)}: with it the model {_ranks_in_words(cause.tau)}"
        for cause in ranked_causes
        if cause.tau is not None and cause.tau - tau >= NOTEWORTHY
    ]
    if len(lines) == 1 and tau < 1:
        spread = max(ranked_causes, key=lambda cause: cause.most - cause.least)
        largest = _cause_text(spread, steps, choices, known_efficiencies)
        lines.append(f"no single cause explains it; the largest difference is {largest}")
    return lines


def short_explanation_lines(ranked_causes: Sequence[Cause], tau: float | None) -> list[str]:
    """The causes for the closed-form model as text, one line for each; the first line says whether the orders agree."""
    if tau is None:
        return [ONE_ORDER]
    explaining_causes = [cause for cause in ranked_causes if cause.tau is not None and cause.tau - tau >= NOTEWORTHY]
    return [_agreement_text(tau)] + [
        f"simulated {cause.name} differs ({_range_text(cause)}): with it the model {_ranks_in_words(cause.tau)}"
        for cause in explaining_causes
        if cause.tau is not None
    ]


def _agreement_text(tau: float) -> str:
    if tau == 1:
        return "both orders are the same"
    word = "mostly agree" if tau >= MOSTLY_AGREE else "agree in part" if tau >= PARTLY_AGREE else "do not agree"
    return f"the orders {word}"


def _ranks_in_words(tau: float) -> str:
    """The agreement of an order with the simulated order, as text, from Kendall's tau."""
    if tau == 1:
        return "ranks as the simulation does"
    degree = "mostly" if tau >= MOSTLY_AGREE else "in part" if tau >= PARTLY_AGREE else "hardly"
    return f"ranks {degree} as the simulation does"


def _cause_text(
    cause: Cause, steps: Sequence[TrainingStep], choices: Choices, known_efficiencies: Sequence[float]
) -> str:
    """A cause with its numbers; `known_efficiencies` are shares of the peak."""
    span = _range_text(cause)
    match cause.name:
        case "compute":
            rates = (
                f", products at {100 * min(known_efficiencies):.0f} to {100 * max(known_efficiencies):.0f} % of peak"
                if known_efficiencies
                else ""
            )
            return f"compute is left out of the model ({span}{rates}, by the shapes of the local products)"
        case "latency":
            return f"latency is left out of the model ({span}): long rings have many steps"
        case "transfer":
            contention = [step.contention for step in steps]
            least, most = format_seconds(min(contention)), format_seconds(max(contention))
            one_nic = f"; a ring of {choices} leaves a node by one NIC" if choices.implementation == "own" else ""
            return (
                f"transfer times differ from the table ({span}; sharing links adds {least} to {most}{one_nic}), and "
                "the model leaves out embedding, logits and vectors"
            )
        case "overlap":
            return f"overlap hides communication ({span})"
        case _:
            return f"ranks wait for each other ({span})"


def _range_text(cause: Cause) -> str:
    least, most = format_seconds(abs(cause.least)), format_seconds(abs(cause.most))
    return f"{_sign(cause.least)}{least} to {_sign(cause.most)}{most}"


def _sign(value: float) -> str:
    return "-" if value < 0 else ""
