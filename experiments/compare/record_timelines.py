"""The timeline files of two compared records: files that the user names, or files next to the records."""

from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import is_file
from quadrille.algorithms.formats.record import Kind
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.timelines.timeline import Timeline

TIMELINE_ENDING = ".timeline.json"
"""A record NAME.json may have its timeline next to it as NAME.timeline.json."""


def load_timelines(
    predicted: str, measured: str, paths: tuple[str, str] | None, ranks: int
) -> tuple[Timeline, Timeline] | None:
    """The timelines of a predicted and a measured record; None unless both files exist.

    Parameters
    ----------
    predicted, measured : paths of the records
    paths : paths of the timelines, predicted first; None for the files next to the records
    ranks : number of ranks of the records
    """
    default_paths = (timeline_path(predicted), timeline_path(measured))
    if paths is None and not all(map(is_file, default_paths)):
        return None
    predicted_path, measured_path = paths or default_paths
    return _load_timeline(predicted_path, "predicted", ranks), _load_timeline(measured_path, "measured", ranks)


def timeline_path(record: str) -> str:
    """The path of the timeline next to a record.

    >>> timeline_path("runs/one.json")
    'runs/one.timeline.json'
    """
    return str(Path(record).with_suffix(TIMELINE_ENDING))


def _load_timeline(path: str, kind: Kind, ranks: int) -> Timeline:
    timeline = load_timeline(path)
    if timeline.kind != kind or timeline.ranks != ranks:
        raise InputError(
            f"timeline file {path} is {timeline.kind} on {timeline.ranks} ranks: {kind} on {ranks} ranks is needed"
        )
    return timeline
