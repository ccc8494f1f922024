"""Ranks that come no further: found from where they say they are, and told in one line.

A process that is stopped (SIGSTOP) ends the run after `STOPPED_SECONDS`.  Where a rank
waits for others, none is at work of its own, and for `STANDSTILL_SECONDS` none takes a step and next to
nothing arrives, something is broken between them: a link, or a peer that nobody sees.
Ranks tell where they are by files in the launch's folder (`runtime/host/progress_reports.py`), so
this sees those of this machine.  Where some are on others, only who is stopped is found: these may be at work.

Where ranks speak over TCP, the peers of one that is killed see a closed connection and
end all ranks before the launcher hears of it, and it names one of them.  So processes are
watched (pidfd) from their first word on, and the order in which they end is remembered.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from quadrille.runtime.host.processes import ending_signal, state
from quadrille.runtime.host.progress_reports import RankProgress, every, watch_first_reports
from quadrille.runtime.launching.launcher_output import Failure

STOPPED_SECONDS = 10.0
STANDSTILL_SECONDS = 60.0
FEW_BYTES = 1 << 16
"""What may arrive meanwhile: the launcher's own messages."""
MOST_TOLD = 4
LAUNCHER, WORDS = -1, -2
"""Beside the ranks, among what is watched: the launcher, and the folder in which ranks leave word."""
MOST_READ = 1 << 16
"""Of what the kernel says of new files, at once [B]."""
NetworkDiagnosis = Callable[[], Sequence[str]]
"""What is wrong with the network, as far as anybody can see from outside."""


class HangDetector:
    """Looks at the ranks of a launch from time to time.

    Parameters
    ----------
    ranks : how many there are, on all hosts
    """

    def __init__(self, folder: str, ranks: int, diagnose_network: NetworkDiagnosis = tuple) -> None:
        self._folder, self._ranks, self._suspects = folder, ranks, diagnose_network
        self._stopped: dict[int, float] = {}
        self._counts: list[int] = []
        self._arrived, self._since = 0, 0.0
        self._handles: dict[int, int] = {}
        self._seen: set[int] = set()
        self.gone: list[list[Failure]] = []

    def rest(self, seconds: float, launcher: "subprocess.Popen[str]") -> None:
        """Wait so long, or until the launcher or a rank has ended, or a rank has left its first word.

        Ranks that have ended within an op, or by a signal, are noted in `gone`, those found at one look together.
        """
        if not self._watch(LAUNCHER, launcher.pid):
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(seconds)
            return
        self._watch_words()
        new = [one for one in every(self._folder) if one.rank not in self._seen]
        missed = {one.rank for one in new if not self._watch(one.rank, one.pid) and not state(one.pid)}
        ready, _, _ = select.select(list(self._handles.values()), [], [], 0.0 if missed else seconds)
        if self._handles.get(WORDS) in ready:
            os.read(self._handles[WORDS], MOST_READ)
        ended = missed | {rank for rank, handle in self._handles.items() if handle in ready}
        self._note([one for one in every(self._folder) if one.rank in ended] if ended else [])

    def _note(self, ranks: Sequence[RankProgress]) -> None:
        """Keep how these ranks have ended; they are watched no longer."""
        found = [
            Failure(rank=one.rank, signal=number)
            for one in ranks
            if (number := ending_signal(one.pid, self._handles.get(one.rank))) is not None or one.words
        ]
        if found:
            self.gone.append(found)
        for handle in [self._handles.pop(one.rank) for one in ranks if one.rank in self._handles]:
            os.close(handle)

    def _watch(self, rank: int, pid: int) -> bool:
        """Watch a process; whether that can be."""
        if rank not in self._seen:
            with suppress(OSError, AttributeError):
                self._handles[rank] = os.pidfd_open(pid)
        self._seen.add(rank)
        return rank in self._handles

    def _watch_words(self) -> None:
        """Watch for first words, where that can be."""
        if WORDS not in self._seen and (handle := watch_first_reports(self._folder)) is not None:
            self._handles[WORDS] = handle
        self._seen.add(WORDS)

    def close(self) -> None:
        """Watch nothing any longer."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def seen(self) -> str:
        """Why the run has to be ended, in words; empty while it goes on."""
        now, ranks = time.monotonic(), list(every(self._folder))
        return self._one_stopped(ranks, now) or self._none_moves(ranks, now)

    def _one_stopped(self, ranks: Sequence[RankProgress], now: float) -> str:
        found = {one.rank: one for one in ranks if state(one.pid) in ("T", "t")}
        self._stopped = {rank: self._stopped.get(rank, now) for rank in found}
        for rank, since in self._stopped.items():
            if now - since > STOPPED_SECONDS:
                return f"rank {rank} has been stopped for {STOPPED_SECONDS:g} s (SIGSTOP) {where(found[rank])}"
        return ""

    def _none_moves(self, ranks: Sequence[RankProgress], now: float) -> str:
        counts = [one.count for one in ranks]
        all_are_seen = len(ranks) == self._ranks
        none_works = any(one.waiting for one in ranks) and all(one.waiting or not one.words for one in ranks)
        waiting = all_are_seen and none_works
        arrived = bytes_arrived(one.pid for one in ranks) if waiting else 0
        if not waiting or counts != self._counts or arrived > self._arrived + FEW_BYTES:
            self._counts, self._arrived, self._since = counts, arrived, now
        if now - self._since <= STANDSTILL_SECONDS or not waiting:
            return ""
        return f"no rank has come further for {STANDSTILL_SECONDS:g} s: " + "; ".join([*self._suspects(), *told(ranks)])


def told(ranks: Iterable[RankProgress]) -> list[str]:
    """Who is in which op.

    >>> told([RankProgress(rank, 1, 1, True, "'gather B'") for rank in range(2)] + [RankProgress(2, 1, 9, False, "")])
    ["ranks 0, 1 in 'gather B'", 'rank 2 at its end']
    """
    groups: dict[str, list[int]] = {}
    for one in ranks:
        groups.setdefault(where(one), []).append(one.rank)
    return [
        f"rank{'s' if len(group) > 1 else ''} {', '.join(map(str, group))} {words}"
        for words, group in list(groups.items())[:MOST_TOLD]
    ]


def where(one: RankProgress) -> str:
    return f"in {one.words}" if one.words else "at its end" if one.count > 1 else "at its start"


def bytes_arrived(pids: Iterable[int]) -> int:
    """Bytes that have come in at the interfaces of these processes, where their network is not this process's."""
    found = 0
    own = Path("/proc/self/ns/net").readlink()
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").readlink() != own:
                lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
                found += sum(int(line.partition(":")[2].split()[0]) for line in lines if "lo:" not in line)
    return found
