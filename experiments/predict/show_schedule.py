"""`quadrille schedule`: prints the schedule of an experiment, and draws the grid of its pipeline."""

from quadrille.algorithms.errors import InputError
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.training_lines import workload_text


def show_schedule(experiment: Experiment, *, plot: str = "") -> None:
    """Prints the tensors, lanes and ops of a schedule; of a pipeline also the passes of each stage in time.

    Parameters
    ----------
    plot : path of the figure of the pipeline; empty for none

    Raises
    ------
    InputError : an order that is not fixed, a figure of a schedule without a pipeline, or a path that cannot be written
    """
    if experiment.execution.any_order:
        raise InputError("order 'auto': run and simulate find it for a --machine; name the axes, such as z,y,x,data")
    Destinations(plot=plot).check()
    has_pipeline = experiment.grid.pipeline > 1
    if plot and not has_pipeline:
        raise InputError(
            f"--plot {plot}: goes with a pipeline, as --grid pipeline=4; simulate --plot draws the ops of any schedule"
        )
    print(experiment.schedule())
    if has_pipeline:
        _show_pipeline(experiment, plot)


def _show_pipeline(experiment: Experiment, plot: str) -> None:
    from quadrille.experiments.predict.pipeline_grid import pipeline_grid
    from quadrille.experiments.workloads.training import TrainingExperiment

    assert isinstance(experiment, TrainingExperiment), "only training steps have a pipeline"
    smaller_last = experiment.microbatches.smaller_last
    print("", *pipeline_grid(experiment.stages, smaller_last=smaller_last), sep="\n")
    if plot:
        from quadrille.experiments.predict.pipeline_figure import draw_pipeline

        setting = workload_text(experiment.workload)
        draw_pipeline(experiment.stages, plot, setting=setting, smaller_last=smaller_last)
