"""`--order auto`: chooses the order of the grid's axes with the smallest predicted time on the machine.

The whole experiment is predicted in every order that differs on its grid.  Rank 0 of a run
chooses and broadcasts the order, so other ranks need no simulator.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from quadrille.algorithms.formats.record import Choice, Record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.predict.collectives_choice import rounded_seconds
from quadrille.experiments.workloads.rank_orders import FASTEST_FIRST, grids_in_every_order

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment

AnyExperiment = TypeVar("AnyExperiment", bound="Experiment")
NO_MACHINE = f"--order auto: no --machine to predict with, so ranks are laid out in {','.join(FASTEST_FIRST)}"


@dataclass(frozen=True, slots=True)
class TriedOrder:
    """A grid in one order of its axes, and the predicted time of the whole experiment [s].

    The time is 0 if there is no other order, because nothing is predicted.
    """

    grid: Grid
    seconds: float

    def __str__(self) -> str:
        return ",".join(
            axis for axis in self.grid.order if axis in (*FASTEST_FIRST, *self.grid.lengths) and axis != "pipeline"
        )


@dataclass(frozen=True, slots=True)
class ChosenOrder:
    """The rank orders that differ on a grid, sorted by predicted time; the first is the choice."""

    ranked: tuple[TriedOrder, ...]

    def line(self) -> str:
        """The choice and its reason, as a line of text.

        >>> grids = Grid(z=2, x=2, order=("z", "y", "x")), Grid(z=2, x=2)
        >>> ChosenOrder((TriedOrder(grids[0], 3.45), TriedOrder(grids[1], 5.796))).line()
        'order z,y,x,data: 3.45 s predicted; then x,y,z,data, 68.0 % more'
        """
        if len(self.ranked) == 1:
            return f"order {self.ranked[0]}: no other differs on the grid"
        first, second = self.ranked[:2]
        more = second.seconds / first.seconds - 1 if first.seconds else 0.0
        return f"order {first}: {format_seconds(first.seconds)} predicted; then {second}, {100 * more:.1f} % more"

    def with_chosen_order(self, experiment: AnyExperiment) -> AnyExperiment:
        """The experiment with its ranks in the chosen order."""
        return _with_grid(experiment, self.ranked[0].grid)

    def with_order_choice(self, record: Record) -> Record:
        """The record with the chosen order and its predicted time, if there was a choice."""
        if len(self.ranked) == 1:
            return record
        first, second = self.ranked[:2]
        entry = Choice(str(first), first.seconds, str(second), second.seconds)
        return msgspec.structs.replace(record, order_choice=entry)


def chosen_order(experiment: AnyExperiment, predicted_seconds: Callable[[AnyExperiment], float]) -> ChosenOrder:
    """The choice among all rank orders that differ on the grid; equally fast orders keep the order of ORDERS.

    Parameters
    ----------
    experiment : experiment on its grid, in any order
    predicted_seconds : function that predicts the time of the experiment in an order [s]
    """
    grids = grids_in_every_order(experiment.grid)
    if len(grids) == 1:
        return unchanged_order(experiment)
    tried_orders = [TriedOrder(grid, predicted_seconds(_with_grid(experiment, grid))) for grid in grids]
    return ChosenOrder(tuple(sorted(tried_orders, key=lambda tried_order: rounded_seconds(tried_order.seconds))))


def unchanged_order(experiment: AnyExperiment) -> ChosenOrder:
    """The rank order of the experiment itself, if there is no choice or no machine to predict with."""
    return ChosenOrder((TriedOrder(experiment.grid, 0.0),))


def _with_grid(experiment: AnyExperiment, grid: Grid) -> AnyExperiment:
    return replace(experiment, grid=grid, execution=replace(experiment.execution, any_order=False))
