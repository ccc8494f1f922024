"""Hang detection: it finds ranks that make no progress, from their progress reports, and describes them in one line.

Theory of operation
-------------------
- A stopped process (SIGSTOP), a rank or the launcher, ends the run after `TimeLimits.stopped`.
- If some ranks have not started and for `TimeLimits.start` no other rank starts, then the launcher cannot start them.
- If some rank waits for others, no rank does local work, and for `TimeLimits.standstill` no rank takes a step and
  almost no bytes arrive, then something between the ranks is broken: a link, or a peer that nobody notices.
- A rank reports its process before its program runs, so a rank that is stopped or killed while MPI starts is visible.
  A rank that has not reported anything else is loading its program, which counts as local work. Before all ranks have
  reported, all processes of the launch are looked at, so a rank that is stopped before it reports is noticed.
- The reports are files in the launch's folder (`runtime/host/progress_reports.py`), so only ranks of this machine are
  visible. If some ranks are elsewhere, only stopped processes are detected, as invisible ranks may be working.
- When a rank is killed, its peers over TCP see a closed connection and abort all ranks before the launcher notices. The
  launcher then names one of the peers. So all processes are watched (pidfd) from their first report on, and the order
  in which they end is recorded.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quadrille.runtime.host.processes import ending_signal, state
from quadrille.runtime.host.progress_reports import ENDING, RankProgress, read_reports, watch_first_reports
from quadrille.runtime.launching.launch_folder import processes_of_launch
from quadrille.runtime.launching.launcher_output import Failure

MAX_IDLE_BYTES = 1 << 16
"""The bytes that may arrive without progress: the launcher's own messages."""
MAX_GROUPS_IN_MESSAGE = 4
"""The most groups of ranks in one message."""
LAUNCHER, REPORTS = -1, -2
"""Keys of the watched launcher and of the folder with the reports; the other keys are ranks."""
MAX_READ_BYTES = 1 << 16
"""The most bytes that are read at once from inotify."""
NetworkDiagnosis = Callable[[], Sequence[str]]
"""A function that returns visible faults of the network, in words."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The times after which a launch that makes no progress is ended [s].

    Parameters
    ----------
    stopped : longest time for which a process may be stopped
    standstill : longest time without progress of any rank
    start : longest time until the launcher starts the next rank; all ranks of a full machine start within 40 s
    """

    stopped: float = 10.0
    standstill: float = 60.0
    start: float = 120.0


DEFAULT_LIMITS = TimeLimits()


class HangDetector:
    """The hang detector of a launch: it watches the ranks' processes and progress reports.

    Parameters
    ----------
    folder : folder of the launch, with the progress reports
    ranks : number of ranks, on all hosts
    diagnose_network : returns visible network faults; called if no rank makes progress
    all_on_this_host : whether this host runs all ranks, so that a rank without a report has not started
    limits : times after which the launch is ended
    """

    def __init__(
        self,
        folder: str,
        ranks: int,
        diagnose_network: NetworkDiagnosis = tuple,
        *,
        all_on_this_host: bool = False,
        limits: TimeLimits = DEFAULT_LIMITS,
    ) -> None:
        self._folder, self._ranks, self._suspects, self._limits = folder, ranks, diagnose_network, limits
        self._all_on_this_host, self._launcher = all_on_this_host, 0
        self._started, self._last_start = -1, 0.0
        self._stopped: dict[int, float] = {}
        self._counts: list[int] = []
        self._bytes_arrived, self._since = 0, 0.0
        self._handles: dict[int, int] = {}
        self._seen: set[int] = set()
        self.gone: list[list[Failure]] = []

    def rest(self, seconds: float, launcher: "subprocess.Popen[str]") -> None:
        """Wait for some seconds, or until the launcher or a rank has ended, or a rank has written its first report.

        Ranks that ended during an op, or by a signal, are recorded in `gone`; ranks found at the same time are grouped.
        """
        self._launcher = launcher.pid
        if not self._watch(LAUNCHER, launcher.pid):
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(seconds)
            return
        self._watch_first_reports()
        new = [progress for progress in read_reports(self._folder) if progress.rank not in self._seen]
        ended_unwatched = {
            progress.rank
            for progress in new
            if not self._watch(progress.rank, progress.pid) and not state(progress.pid)
        }
        ready, _, _ = select.select(list(self._handles.values()), [], [], 0.0 if ended_unwatched else seconds)
        if self._handles.get(REPORTS) in ready:
            os.read(self._handles[REPORTS], MAX_READ_BYTES)
        ended = ended_unwatched | {rank for rank, handle in self._handles.items() if handle in ready}
        self._note([progress for progress in read_reports(self._folder) if progress.rank in ended] if ended else [])

    def _note(self, ranks: Sequence[RankProgress]) -> None:
        """Record how these ranks ended and stop watching them."""
        failures = [
            Failure(rank=progress.rank, signal=number)
            for progress in ranks
            if (number := ending_signal(progress.pid, self._handles.get(progress.rank))) is not None
            or progress.words not in ("", ENDING.words)
        ]
        if failures:
            self.gone.append(failures)
        for handle in [self._handles.pop(progress.rank) for progress in ranks if progress.rank in self._handles]:
            os.close(handle)

    def _watch(self, rank: int, pid: int) -> bool:
        """Watch a process; returns whether that is possible."""
        if rank not in self._seen:
            with suppress(OSError, AttributeError):
                self._handles[rank] = os.pidfd_open(pid)
        self._seen.add(rank)
        return rank in self._handles

    def _watch_first_reports(self) -> None:
        """Watch for first reports, where that is possible."""
        if REPORTS not in self._seen and (handle := watch_first_reports(self._folder)) is not None:
            self._handles[REPORTS] = handle
        self._seen.add(REPORTS)

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def seen(self) -> str:
        """The reason why the run must be ended, in words; empty while it makes progress."""
        now, ranks = time.monotonic(), list(read_reports(self._folder))
        return (
            self._stopped_rank_message(ranks, now)
            or self._none_starts(ranks, now)
            or self._standstill_message(ranks, now)
        )

    def _stopped_rank_message(self, ranks: Sequence[RankProgress], now: float) -> str:
        names = self._processes_without_reports(ranks) | {progress.pid: f"rank {progress.rank}" for progress in ranks}
        if self._launcher:
            names[self._launcher] = "the launcher"
        stopped = [pid for pid in names if state(pid) in ("T", "t")]
        self._stopped = {pid: self._stopped.get(pid, now) for pid in stopped}
        for pid in stopped:
            if now - self._stopped[pid] > self._limits.stopped:
                how = f"has been stopped for {self._limits.stopped:g} s (SIGSTOP)"
                where = [describe_position(progress) for progress in ranks if progress.pid == pid]
                return " ".join([names[pid], how, *where])
        return ""

    def _processes_without_reports(self, ranks: Sequence[RankProgress]) -> dict[int, str]:
        """A name for each process of the launch, while some rank has not reported its process."""
        if len(ranks) >= self._ranks or not self._all_on_this_host:
            return {}
        return dict.fromkeys(processes_of_launch(self._folder), "a process that starts a rank")

    def _none_starts(self, ranks: Sequence[RankProgress], now: float) -> str:
        if len(ranks) != self._started:
            self._started, self._last_start = len(ranks), now
        missing = sorted({*range(self._ranks)} - {progress.rank for progress in ranks})
        if not missing or not self._all_on_this_host or now - self._last_start <= self._limits.start:
            return ""
        more = " and more" if len(missing) > MAX_GROUPS_IN_MESSAGE else ""
        verb = "have" if len(missing) > 1 else "has"
        who = f"{ranks_text(missing[:MAX_GROUPS_IN_MESSAGE])}{more} {verb}"
        return "; ".join([f"{who} not started for {self._limits.start:g} s", *self._suspects()])

    def _standstill_message(self, ranks: Sequence[RankProgress], now: float) -> str:
        counts = [progress.count for progress in ranks]
        all_are_seen = len(ranks) == self._ranks
        nobody_works = any(progress.waiting for progress in ranks) and all(
            progress.waiting or (progress.count and not progress.words) for progress in ranks
        )
        waiting = all_are_seen and nobody_works
        bytes_now = bytes_arrived(progress.pid for progress in ranks) if waiting else 0
        if not waiting or counts != self._counts or bytes_now > self._bytes_arrived + MAX_IDLE_BYTES:
            self._counts, self._bytes_arrived, self._since = counts, bytes_now, now
        if now - self._since <= self._limits.standstill or not waiting:
            return ""
        return f"no rank has come further for {self._limits.standstill:g} s: " + "; ".join(
            [*self._suspects(), *describe_ranks(ranks)]
        )


def describe_ranks(ranks: Iterable[RankProgress]) -> list[str]:
    """The positions of all ranks, grouped.

    >>> progress = [RankProgress(rank, 1, 1, True, "'gather B'") for rank in range(2)]
    >>> describe_ranks([*progress, RankProgress(2, 1, 9, False, "")])
    ["ranks 0, 1 in 'gather B'", 'rank 2 at its end']
    """
    groups: dict[str, list[int]] = {}
    for progress in ranks:
        groups.setdefault(describe_position(progress), []).append(progress.rank)
    return [f"{ranks_text(group)} {words}" for words, group in list(groups.items())[:MAX_GROUPS_IN_MESSAGE]]


def ranks_text(numbers: Sequence[int]) -> str:
    """The ranks with these numbers, as text.

    >>> ranks_text([3]), ranks_text([0, 2])
    ('rank 3', 'ranks 0, 2')
    """
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def describe_position(progress: RankProgress) -> str:
    """The position of a rank in words."""
    if not progress.count:
        return "before its first report"
    return f"in {progress.words}" if progress.words else "at its end" if progress.count > 1 else "at its start"


def bytes_arrived(pids: Iterable[int]) -> int:
    """Bytes received on the interfaces of these processes, for processes in another network namespace than this one."""
    total = 0
    own = Path("/proc/self/ns/net").readlink()
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").readlink() != own:
                lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
                total += sum(int(line.partition(":")[2].split()[0]) for line in lines if "lo:" not in line)
    return total
