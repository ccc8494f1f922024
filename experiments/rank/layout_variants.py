"""Layouts and their variants: which configurations of a ranking are simulated.

Variants of a layout differ in ZeRO, recomputation, gathered weights, overlap, offload and the order of ranks.  The
closed form gives many of them the same time, so the fastest configurations by the closed form are often variants of
one layout.  Therefore the best variant of each layout is simulated first, and then variants of the fastest layouts.
"""

from collections.abc import Sequence

from quadrille.algorithms.schedule.grid import AXES, FOLDED_AXES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.rank.configuration_evaluator import Configuration
from quadrille.experiments.workloads.training import TrainingExperiment

VARIANTS = 4
"""Number of simulations of which one is of a further variant of the fastest layouts."""


def layout(experiment: TrainingExperiment) -> tuple[object, ...]:
    """What the variants of a layout share: scheme, lengths of the axes, microbatch, order of passes, chunks, stages."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    lengths = tuple(grid.length(axis) for axis in (*AXES, *FOLDED_AXES))
    order = (problem.pipeline_schedule, problem.interleave, problem.stages)
    return experiment.scheme, lengths, problem.micro_batch, order


def best_of_layouts(ranked: Sequence[Configuration], count: int) -> list[Configuration]:
    """The first configuration of each layout, at most as many as `count`.

    Parameters
    ----------
    ranked : configurations, the fastest by the closed form first
    """
    best: dict[tuple[object, ...], Configuration] = {}
    for configuration in ranked:
        best.setdefault(layout(configuration.experiment), configuration)
    return list(best.values())[:count]


def first_simulated(ranked: Sequence[Configuration], count: int) -> list[Configuration]:
    """The best variant of each layout, as many as leave one of `VARIANTS` simulations for further variants."""
    return best_of_layouts(ranked, count - count // VARIANTS)


def further_variants(
    ranked: Sequence[Configuration], fastest_first: Sequence[TrainingExperiment], count: int
) -> list[Configuration]:
    """The variants of the fastest simulated layouts that are not simulated yet, at most as many as `count`.

    Parameters
    ----------
    ranked : configurations, the fastest by the closed form first
    fastest_first : simulated configurations, the fastest as simulated first
    """
    simulated = set(fastest_first)
    places: dict[tuple[object, ...], int] = {}
    for experiment in fastest_first:
        places.setdefault(layout(experiment), len(places))
    variants = [
        configuration
        for configuration in ranked
        if configuration.experiment not in simulated and layout(configuration.experiment) in places
    ]
    return sorted(variants, key=lambda variant: places[layout(variant.experiment)])[: max(0, count)]
