"""Figures as files: in the format of the name's ending, complete or not at all."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.optional_packages import check_installed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def check_figure_path(path: str | Path) -> None:
    """Raises InputError if no figure could be written at `path`; to be asked before the work."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise InputError(f"figure {path} ends in {ending or 'nothing'!r}: one of {', '.join(FORMATS)} is needed")
    check_installed("matplotlib")
    schema_files.check_writable(path)


def write_figure(figure: "Figure", path: str | Path) -> None:
    """Writes the figure in the format of its name's ending, complete or not at all; the same figure, the same bytes."""
    from matplotlib import rc_context

    check_figure_path(path)
    ending = Path(path).suffix.lower().removeprefix(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    picture = BytesIO()
    with rc_context({"svg.hashsalt": "quadrille"}):
        figure.savefig(picture, format=ending, metadata=undated, dpi=150)
    schema_files.write_bytes(path, picture.getvalue())
