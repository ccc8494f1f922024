"""Files of matplotlib figures: the ending of the path gives the format, and equal figures have equal bytes."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_settings import SETTINGS
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.optional_packages import check_installed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def check_figure_path(path: str | Path) -> None:
    """Checks, before any work, that a figure can be written to `path`.

    Raises
    ------
    InputError : an unknown ending, a missing matplotlib, or a path that cannot be written
    """
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise InputError(f"figure {path} ends in {ending or 'nothing'!r}: one of {', '.join(FORMATS)} is needed")
    check_installed("matplotlib")
    schema_files.check_writable(path)


def write_figure(figure: "Figure", path: str | Path) -> None:
    """Writes a figure in the format of the path's ending; a failure leaves no partial file.

    The file has no date, so that equal figures have equal bytes.
    """
    from matplotlib import rc_context

    check_figure_path(path)
    ending = Path(path).suffix.lower().removeprefix(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    picture_bytes = BytesIO()
    with rc_context(SETTINGS | {"svg.hashsalt": "quadrille"}):
        figure.savefig(picture_bytes, format=ending, metadata=undated, dpi=150)
    schema_files.write_bytes(path, picture_bytes.getvalue())
