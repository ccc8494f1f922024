"""Questions and answers, as they pass between the server and its workers."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from quadrille.experiments.report.elements import Part

Words = tuple[str, ...]
"""The words of a command line after `quadrille simulate`: a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question: an estimate or a prediction.

    Parameters
    ----------
    words : words of the command line after `quadrille simulate`
    part : its part of a report; of an estimate, the verdict and the memory
    seconds : time of the step [s]
    device_bytes : memory of the fullest rank [B]
    figures : further amounts, as text, by name
    remarks : lines that the command line writes to stderr
    is_estimate : whether the prediction is still to come
    file_times : times of the last changes of the files that the words name [ns]
    basis : pickled record, experiment and machine of a prediction, for its roofline; the server does not read it
    """

    words: Words
    part: Part
    seconds: float
    device_bytes: int
    figures: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    is_estimate: bool = False
    file_times: tuple[int, ...] = ()
    basis: bytes = field(default=b"", repr=False)

    @property
    def is_of_changed_files(self) -> bool:
        """Whether a file that the words name is another one than at the time of the answer."""
        return self.file_times != file_times(self.words)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The line of a command line that is refused."""

    words: Words
    line: str


Reply = Answer | Refusal | None
Question = Words | Answer
"""What a worker is asked about: a command line, or an answer whose part of a report is to be completed."""


def file_times(words: Words) -> tuple[int, ...]:
    """The times of the last changes of the files that words name [ns]: an answer from an older file is none.

    >>> file_times(("--machine", "no-such-file.toml"))
    ()
    """
    times = []
    for word in words:
        for path in dict.fromkeys((word, word.rpartition("=")[2])):
            with suppress(OSError, ValueError):
                times.append(Path(path).stat().st_mtime_ns)
    return tuple(times)
