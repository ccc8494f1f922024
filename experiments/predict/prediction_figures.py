"""The figures of a prediction besides its timeline: the use of the network's links, and the roofline."""

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity, Record
from quadrille.experiments.output.destinations import PlotOf
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.predict.prepared_prediction import is_by_passes
from quadrille.experiments.records.run_figure import run_setting
from quadrille.simulator.prediction import Prediction


def draw_prediction(
    subject: PlotOf, prepared: PreparedExperiment, prediction: Prediction, record: Record, path: str
) -> None:
    """Writes the figure of a subject.

    Raises
    ------
    InputError : a prediction that does not know the links or the ops, or a path that cannot be written
    """
    if record.simulation is not None and record.simulation.granularity == "passes":
        raise by_passes(subject)
    if subject == "links":
        _draw_link_use(prepared, prediction, record, path)
        return
    from quadrille.experiments.predict.roofline import roofline, roofline_ops
    from quadrille.experiments.predict.roofline_figure import draw_roofline

    draw_roofline(roofline(prepared, roofline_ops(prepared, prediction.timeline)), run_setting(record), path)


def check_subject(subject: PlotOf, prepared: PreparedExperiment, granularity: AskedGranularity) -> None:
    """Checks, before the simulation, that a prediction knows the subject of its figure.

    Raises
    ------
    InputError : links or a roofline of a prediction by passes
    """
    if subject != "timeline" and is_by_passes(prepared, granularity):
        raise by_passes(subject)


def by_passes(subject: PlotOf) -> InputError:
    """The error about a subject that a prediction by passes does not know."""
    words = "counts no links" if subject == "links" else "has no ops"
    return InputError(f"--plot-of {subject}: a prediction by passes {words}; --granularity collective has them")


def _draw_link_use(prepared: PreparedExperiment, prediction: Prediction, record: Record, path: str) -> None:
    from quadrille.experiments.drawing.links_figure import draw_links

    used = prediction.every_link() or {load.link: load.utilisation for load in prediction.links}
    draw_links(used, prepared.placement.net, path, setting=run_setting(record))
