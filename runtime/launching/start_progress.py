"""The progress of a launch until its ranks work: a line on a terminal after some seconds, else a line each half minute.

Many ranks on few cores take a minute to load their program and to start MPI, and print nothing meanwhile.
"""

import sys
import threading
import time

from quadrille.runtime.host.console import draw_line, erase_line, overwrites, remark
from quadrille.runtime.host.progress_reports import RankProgress, read_reports

PATIENCE_SECONDS = 2.0
"""Time before the first line on a terminal [s]."""
LOG_SECONDS = 30.0
"""Time before a line, and between two lines, if stderr is no terminal [s]."""
REPORTS_UNTIL_MPI = 3
"""Reports of a rank whose MPI has started: of its program, of the begin of MPI's start and of its end."""


class StartProgress:
    """The progress line of a launch.

    Parameters
    ----------
    folder : folder of the launch, with the progress reports
    ranks : number of ranks
    cores : number of cores that the ranks share
    shown : whether lines are shown
    """

    def __init__(self, folder: str, ranks: int, cores: int, *, shown: bool = True) -> None:
        self._folder, self._ranks, self._cores = folder, ranks, cores
        self._shown, self._is_drawn = shown, False
        self._lock = threading.Lock()
        self._next = time.monotonic() + (PATIENCE_SECONDS if overwrites(sys.stderr) else LOG_SECONDS)

    def look(self) -> None:
        """Draw the line if it is due; end with the first rank that works."""
        if not self._shown or time.monotonic() < self._next:
            return
        reports = list(read_reports(self._folder))
        if any(progress.count >= REPORTS_UNTIL_MPI for progress in reports):
            self.end()
            return
        with self._lock:
            self._draw(self.words(reports))

    def words(self, reports: list[RankProgress]) -> str:
        """The line, given the reports so far."""
        loaded = sum(progress.count > 0 for progress in reports)
        share = f" ({self._ranks / self._cores:.3g} a core)" if self._ranks > self._cores else ""
        return f"starting {self._ranks} ranks{share}: {len(reports)} have begun, {loaded} are in the start of MPI"

    def _draw(self, line: str) -> None:
        if not self._shown:  # another thread has ended it meanwhile
            return
        if not overwrites(sys.stderr):
            self._next = time.monotonic() + LOG_SECONDS
            remark(line)
            return
        draw_line(sys.stderr, line)
        self._is_drawn = True

    def end(self) -> None:
        """Erase the line and draw no further line."""
        with self._lock:
            self._shown = False
            if self._is_drawn:
                erase_line(sys.stderr)
                sys.stderr.flush()
                self._is_drawn = False
