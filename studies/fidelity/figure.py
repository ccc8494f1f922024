"""The figure of the fidelity study: predicted / measured time by measured time, one panel for each site."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, get_args

from quadrille.algorithms.figure_style import PALETTE, factor_lines, legend_below, new_figure, scale_axis, styled
from quadrille.experiments.output.pictures import write_figure
from quadrille.studies.fidelity.judgement import Group, TrialResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
MARKS: dict[Group, str] = dict(zip(get_args(Group), "sov^D", strict=True))
FACTORS = (1.1,)
QUESTION = "How far off are predictions from calibration alone?"


@styled
def draw_fidelity(results: Sequence[TrialResult], path: str) -> None:
    """Write the figure; error bars show the relative spread of each measurement.

    Parameters
    ----------
    results : results of the trials
    path : file of the figure
    """
    sites = list(dict.fromkeys(result.site for result in results))
    lines = ceil(len(sites) / COLUMNS)
    figure = new_figure(4.2 * COLUMNS, 0.8 + 3.4 * lines, question=QUESTION, setting="a panel for each site")
    for index, site in enumerate(sites):
        _panel(
            figure.add_subplot(lines, COLUMNS, index + 1), site, [result for result in results if result.site == site]
        )
    legend_below(figure)
    write_figure(figure, path)


def _panel(axes: "Axes", site: str, results: Sequence[TrialResult]) -> None:
    """Draw the trials of one site, with a mark for each group."""
    for number, (name, mark) in enumerate(MARKS.items()):
        members = [result for result in results if result.group == name]
        if members:
            measured = [result.measured_seconds for result in members]
            ratios = [result.predicted_seconds / result.measured_seconds for result in members]
            noise = [(result.spread or 0.0) * ratio for result, ratio in zip(members, ratios, strict=True)]
            axes.errorbar(
                measured, ratios, yerr=noise, fmt=mark, color=PALETTE[number], markersize=4, linewidth=0.7, label=name
            )
    factor_lines(axes, FACTORS)
    scale_axis(axes.xaxis, [result.measured_seconds for result in results], "s", from_zero=False)
    axes.set(title=site, xlabel="measured time", ylabel="predicted / measured")
