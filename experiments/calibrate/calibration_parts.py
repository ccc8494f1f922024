"""The parts of a calibration as they run: stderr gets a line when a part begins, and its seconds when it ends."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class CalibrationParts:
    """The parts of a calibration and their seconds.

    Parameters
    ----------
    speaks : whether this rank prints; the first rank does
    seconds : seconds of each part that has ended, by its name
    """

    speaks: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A context for one part of the calibration."""
        self.say(f"{name} …")
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.say(f"{self.seconds[name]:.1f} s: {name}")

    def say(self, line: str) -> None:
        """Prints a line on stderr at the rank that speaks."""
        if self.speaks:
            print(f"calibrate: {line}", file=sys.stderr, flush=True)


SILENT = CalibrationParts()
"""Parts that print nothing."""
