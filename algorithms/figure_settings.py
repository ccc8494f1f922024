"""The settings of matplotlib that all figures share: type sizes, edges, grids and lines; it imports nothing of it."""

from typing import Any

SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.titlesize": 10,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "text.parse_math": False,  # names of files and machines may have a $
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
"""Settings of matplotlib under which every figure is drawn and written."""
