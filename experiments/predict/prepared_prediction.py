"""The prediction of a prepared experiment: a simulation of its schedule, or a walk through the passes of a pipeline."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.simulator.gc_paused import gc_paused
from quadrille.simulator.simulate import ALL_SHORTCUTS, LIMITS, Limits, Shortcuts, Simulator

if TYPE_CHECKING:
    from quadrille.simulator.prediction import Prediction


def predict_prepared(
    prepared: PreparedExperiment,
    granularity: AskedGranularity = "auto",
    *,
    shortcuts: Shortcuts = ALL_SHORTCUTS,
    limits: Limits = LIMITS,
    timeline_ranks: Sequence[int] = (),
    announce: Callable[[Simulator], None] | None = None,
) -> "Prediction":
    """The prediction of a prepared experiment; pass by pass if that was asked for, or is the only quick way.

    The bounds of collective granularity need the start of each message before any later op of the rank is known.  With
    interleaved chunks in rounds that are longer than the number of stages, no message may be left whose start is known.
    `auto` then goes on pass by pass, or op by op if passes are not supported.

    Parameters
    ----------
    granularity : as `--granularity` takes it
    shortcuts, limits : shortcuts and limits of the simulation
    timeline_ranks : ranks that the timeline must have
    announce : function that gets the simulation before it runs
    """
    with gc_paused():
        if is_by_passes(prepared, granularity, limits):
            from quadrille.experiments.predict.pass_prediction import predict_passes

            return predict_passes(prepared, timeline_ranks=timeline_ranks, shortcuts=shortcuts, limits=limits)
        experiment = prepared.experiment
        simulation = Simulator(
            prepared.simulated_schedule,
            prepared.machine,
            choices=experiment.execution.choices,
            threads=prepared.threads,
            placement=experiment.execution.placement,
            shortcuts=shortcuts,
            granularity=granularity,
            rank_placement=prepared.placement,
            limits=limits,
            jitter=experiment.execution.jitter,
        )
        if announce is not None:
            announce(simulation)
    try:
        return simulation.run(timeline_ranks)
    except Deadlock:
        if granularity != "auto" or simulation.granularity != "collective":
            raise
    return predict_prepared(
        prepared,
        "passes" if _passes_are_supported(prepared) else "exact",
        shortcuts=shortcuts,
        limits=limits,
        timeline_ranks=timeline_ranks,
        announce=announce,
    )


def is_by_passes(prepared: PreparedExperiment, granularity: AskedGranularity, limits: Limits = LIMITS) -> bool:
    """Whether a prediction walks through the passes of a pipeline; `auto` may still do so after a deadlock."""
    return granularity == "passes" or (granularity == "auto" and _passes_are_quicker(prepared, limits))


def _passes_are_supported(prepared: PreparedExperiment) -> bool:
    """Whether the experiment can be predicted pass by pass."""
    if prepared.schedule.grid.pipeline == 1:
        return False
    from quadrille.experiments.predict.pass_prediction import unsupported_passes

    return not unsupported_passes(prepared.experiment)


def _passes_are_quicker(prepared: PreparedExperiment, limits: Limits) -> bool:
    """Whether only a walk through the passes of a pipeline predicts the experiment quickly."""
    if prepared.schedule.grid.pipeline == 1:
        return False
    from quadrille.experiments.predict.pass_instances import passes_are_quicker

    return passes_are_quicker(prepared, limits)
