"""The timelines of two records: named files, or files next to the records."""

from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Kind
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.timelines.timeline import Timeline

TIMELINE_ENDING = ".timeline.json"
"""A record NAME.json may have its timeline beside it as NAME.timeline.json."""


def timelines_of(
    predicted: str, measured: str, named: tuple[str, str] | None, ranks: int
) -> tuple[Timeline, Timeline] | None:
    """Both timelines, from the named files or from files next to the records; None unless both exist."""
    beside = (timeline_beside(predicted), timeline_beside(measured))
    if named is None and not all(Path(path).is_file() for path in beside):
        return None
    predicted_path, measured_path = named or beside
    return _load_timeline(predicted_path, "predicted", ranks), _load_timeline(measured_path, "measured", ranks)


def timeline_beside(record: str) -> str:
    """The name of the timeline of a record.

    >>> timeline_beside("runs/one.json")
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
