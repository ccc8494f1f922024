"""The stderr of an MPI launcher, separated into the launcher's remarks and the lines of our ranks.

Open MPI frames its remarks with lines of dashes, MPICH with lines of equals signs, and Slurm begins its lines with its
own name. `LauncherOutput` takes stderr line by line. It returns the ranks' lines at once, keeps the launcher's remarks,
and finds in them which rank failed first, and how.
"""

import re
import signal
from dataclasses import dataclass

RULE = re.compile(r"^[-=]{50,}\s*$")
RULE_AT_END = re.compile(r"[-=]{50,}\s*$")
"""A frame line directly after a rank's text without a line break."""
FRAMED = re.compile(
    r"prte|PRRTE|orte|mpirun|mpiexec|MPI_ABORT|MPI_INIT|MPI communication peer|PMI|Open MPI|BAD TERMINATION"
    r"|slots available|\bdaemons?\b",
    re.IGNORECASE,
)
REMARK = re.compile(
    r"^(\[[\w.:-]+:\d+\]|\[[\w.-]+\]\[\[\d+,\d+\],\d+\]|\[warn\] Epoll|srun: |slurmstepd: |\[(mpiexec|proxy)\S*\]"
    r"|Abort is in progress|YOUR APPLICATION TERMINATED|This typically refers to a problem"
    r"|application called MPI_Abort|Please see the FAQ page|Abort\(-?\d+\) on node )"
)
ABORTING = re.compile(r"\*\*\* reported by process \[\d+,(\d+)\]")
SIGNAL_WORDS = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7}


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of the first failed rank.

    >>> Failure(rank=1, signal=9).line()
    'rank 1 was killed by signal 9 (SIGKILL); all ranks were ended'
    >>> Failure(rank=3, status=4).line()
    'rank 3 ended with exit status 4; all ranks were ended'
    >>> Failure(signal=11).line()
    'a rank was killed by signal 11 (SIGSEGV); all ranks were ended'
    >>> Failure(signal=7).line()
    'a rank was killed by signal 7 (SIGBUS), as where /dev/shm or a disk is full; all ranks were ended'
    """

    rank: int | None = None
    status: int | None = None
    signal: int | None = None

    def line(self, where: str = "") -> str:
        """One line for the user.

        Parameters
        ----------
        where : position of the rank at that time, as `in 'gather B'`
        """
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        position = f" {where}" if where else ""
        if self.signal is None:
            how = "is gone" if self.status is None else f"ended with exit status {self.status}"
            return f"{who} {how}{position}; all ranks were ended"
        cause = ", as where /dev/shm or a disk is full" if self.signal == signal.SIGBUS else ""
        name = signal_name(self.signal)
        return f"{who} was killed by signal {self.signal} ({name}){position}{cause}; all ranks were ended"


def signal_name(number: int) -> str:
    """The name of a signal.

    >>> signal_name(9), signal_name(200)
    ('SIGKILL', 'unknown')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def failure_in(remark: str) -> Failure | None:
    r"""The failure that a launcher's remark reports; None if it reports none.

    >>> failure_in("prterun noticed that process rank 1 with PID 47 on node vm exited on\nsignal 9 (Killed).")
    Failure(rank=1, status=None, signal=9)
    >>> failure_in("srun: error: nid001: task 5: Exited with exit code 2")
    Failure(rank=5, status=2, signal=None)
    >>> failure_in("No protocol specified") is None
    True
    """
    text = " ".join(remark.split())
    if match := re.search(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)", text):
        return Failure(rank=int(match[1]), signal=int(match[2]))
    if match := re.search(r"MPI_ABORT was invoked on rank (\d+) .*?Errorcode: (-?\d+)", text, re.IGNORECASE):
        return Failure(rank=int(match[1]), status=int(match[2]))
    if match := re.search(r"Process name: \[\[?[^,\]]+[\],]+(\d+)\] Exit code: (\d+)", text):
        return Failure(rank=int(match[1]), status=int(match[2]))
    if match := re.search(r"application called MPI_Abort\(.*?(-?\d+)\) - process (\d+)", text):
        return Failure(rank=int(match[2]), status=int(match[1]))
    if match := re.search(r"EXIT STRING: .*?\(signal (\d+)\)", text):
        return Failure(signal=int(match[1]))
    return failure_of_task(text)


def failure_of_task(text: str) -> Failure | None:
    """The failure of a task in a line of Slurm's `srun`.

    >>> failure_of_task("srun: error: nid001: task 0: Killed")
    Failure(rank=0, status=None, signal=9)
    """
    if match := re.search(r"srun: error: \S+: tasks? (\d+)\S*: Exited with exit code (\d+)", text):
        return Failure(rank=int(match[1]), status=int(match[2]))
    if match := re.search(rf"srun: error: \S+: tasks? (\d+)\S*: ({'|'.join(SIGNAL_WORDS)})", text):
        return Failure(rank=int(match[1]), signal=SIGNAL_WORDS[match[2]])
    return None


class LauncherOutput:
    r"""A filter for the stderr of a launcher.

    >>> output = LauncherOutput()
    >>> output.feed("calibrating\n")
    ['calibrating\n']
    >>> [output.feed(line) for line in ("-" * 74, "prterun noticed that process", "-" * 74)]
    [[], [], []]
    >>> output.remarks
    ['prterun noticed that process']
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.gone: list[list[Failure]] = []  # ranks that ended amid work, as their host saw, look by look
        self.aborting: set[int] = set()  # ranks that ended because another's connection was closed
        self.hang = ""  # why the ranks were ended, if they made no progress
        self.remarks: list[str] = []
        self.passed: list[str] = []
        self.stdout_error: OSError | None = None  # the first failure of this process's stdout
        self._framed: list[str] | None = None
        self._after_remark = False

    def feed(self, line: str) -> list[str]:
        """The lines to pass on after `line` was read."""
        if not (line := line.replace("\0", "")):  # Open MPI ends the text of an abort with NUL
            return []
        if self._framed is not None:
            self._framed.append(line)
            return self._close() if RULE.match(line) else []
        if rule := RULE_AT_END.search(line):
            self._framed = [rule[0]]
            return self._pass([line[: rule.start()] + "\n"]) if rule.start() else []
        if REMARK.match(line) or (self._after_remark and not line.strip()):
            self._keep(line)
            return []
        return self._pass([line])

    def keep_remark(self, text: str) -> bool:
        """Whether a text is a remark of the launcher in a frame of its own; such a text is kept."""
        lines = text.strip().splitlines()
        framed = len(lines) > 2 and RULE.match(lines[0]) and RULE.match(lines[-1])
        if not framed or not FRAMED.search(text):
            return False
        self._keep("\n".join(lines[1:-1]))
        return True

    def finish(self) -> list[str]:
        """The lines of an unclosed frame, unless they are the launcher's."""
        return self._close() if self._framed is not None else []

    def _close(self) -> list[str]:
        read, self._framed = self._framed or [], None
        framed = [line for line in read if not REMARK.match(line)]
        for line in read:  # another process of the launcher wrote into the frame
            if REMARK.match(line):
                self._keep(line)
        text = "".join(line if line.endswith("\n") else line + "\n" for line in framed if not RULE.match(line))
        if not FRAMED.search(text):
            return self._pass(framed)
        self._keep(text)
        return []

    def _keep(self, remark: str) -> None:
        self._after_remark = True
        if remark.strip():
            self.remarks.append(remark.strip())
            self.failure = self.failure or failure_in(remark)
            self.aborting |= {int(rank) for rank in ABORTING.findall(remark)}

    def culprit(self) -> Failure | None:
        """The first rank that failed: from the launcher's report, or else the first rank found gone.

        Ranks that aborted because of another rank do not count. A killed rank comes before a rank without a known
        cause. The launcher ends the other ranks by SIGTERM, so SIGTERM means nothing if some rank reported another's
        failure. If several equal ranks were found gone in one look, none is named.
        """
        if self.failure is not None:
            return self.failure
        gone = [
            ((failure.signal == signal.SIGTERM, failure.signal is None, round_number), failure)
            for round_number, look in enumerate(self.gone)
            for failure in look
            if failure.rank not in self.aborting and not (self.aborting and failure.signal == signal.SIGTERM)
        ]
        first = [failure for key, failure in gone if key == min(key for key, _ in gone)]
        if len(first) < 2:
            return next(iter(first), None)
        signals = {failure.signal for failure in first}
        return Failure(signal=signals.pop() if len(signals) == 1 else None)

    def _pass(self, lines: list[str]) -> list[str]:
        self._after_remark = False
        self.passed += lines
        return lines
