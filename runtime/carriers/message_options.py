"""How the messages of our own steps go: in chunks or whole, and what a rank does while it waits."""

import time
from dataclasses import dataclass
from typing import Literal

from quadrille.runtime.host.world import ComputeHost

Progress = Literal["none", "thread"]
"""What advances communication beside local work: nothing, or a thread."""

CHUNK_BYTES = 45 * 1448 - 24
"""Just below the 64 KiB under which Open MPI sends at once over TCP, and with its header one packet of the kernel's.

Longer messages of two ranks to each other go one way after the other (97 of 200
Mbit/s, those of 60 KiB 170 to 190), on four hosts of a laboratory.

Linux hands up to 64 KiB to a link at once, in whole segments, which hold 1448 bytes on Ethernet; Open MPI puts 22
bytes before what it sends.  A chunk that ends within a packet has come when all of that has, up to a packet's time
later, and whoever passes it on has lost that time.  Of 1.2 MB passed on by one of three hosts at 225 Mbit/s the last
byte comes after 48.6 ms with chunks of 60 KiB, after 46.2 with these.
"""
FIRST_POLL_SLEEP_SECONDS, MAX_POLL_SLEEP_SECONDS = 5e-5, 5e-4
"""Between two looks at messages, at first and at most, where ranks share cores.

Eight small broadcasts one after the other take 66 ms with these, 96 ms with naps of 2 ms, a small training step 254
and 286 ms, and large steps the same (four hosts of a laboratory, 358 Mbit/s); half as long gains nothing more.
"""
FIRST_NAP_SHARE, NAP_GROWTH = 1 / 16, 1.1
"""Of what the last message took, the nap behind it; and how many times as long as a nap the one behind it is."""
IDLE_NAP_SECONDS, IDLE_NAP_GROWTH = 2e-3, 2.0
"""At most, between runs, and so much longer each time: looks take some of a core from those that are not yet there."""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How the messages of a rank go.

    Parameters
    ----------
    chunk_bytes : into which messages of our own steps are cut; 0 for whole steps
    poll_sleep_seconds : how long, at most, a rank that waits sleeps between two looks; 0 to look all the time
    progress : what advances communication beside local work
    """

    chunk_bytes: int = 0
    poll_sleep_seconds: float = 0.0
    progress: Progress = "none"


WHOLE_MESSAGES = MessageOptions()
"""Whole steps, and a rank that waits looks all the time."""


def default_message_options(host: ComputeHost) -> MessageOptions:
    """Whole steps, but chunks and naps in a laboratory, where hosts share the cores of one machine.

    >>> default_message_options(ComputeHost("node", ranks=(0, 1), cores=2))
    MessageOptions(chunk_bytes=0, poll_sleep_seconds=0.0, progress='none')
    """
    if host.sharing:
        return MessageOptions(CHUNK_BYTES, MAX_POLL_SLEEP_SECONDS)
    return WHOLE_MESSAGES


def default_progress(host: ComputeHost, *, hosts: int, threads: int) -> Progress:
    """What advances communication beside local work where nothing else is said.

    A thread, where messages leave the host: they then go by themselves, and need a core for moments only.  Between
    ranks of one host messages are copied by the cores that compute: a thread gains where some are free.

    >>> node = ComputeHost("node", ranks=(0, 1), cores=4)
    >>> default_progress(node, hosts=1, threads=2), default_progress(node, hosts=1, threads=1)
    ('none', 'thread')
    >>> default_progress(node, hosts=2, threads=2)
    'thread'

    Parameters
    ----------
    hosts : on which there are ranks
    threads : of BLAS, of each rank
    """
    crowded = len(host.ranks) * threads >= host.cores
    return "thread" if hosts > 1 or not crowded else "none"


class PollingBackoff:
    """Sleeps between two looks at messages: a part of the time that the last one took at first, then longer ones.

    Messages that come one upon the other are looked for often, and those that take long seldom, since a look takes
    some of a core.

    Parameters
    ----------
    longest : seconds of a nap at most
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._next = FIRST_POLL_SLEEP_SECONDS
        self._state: tuple[tuple[str, ...], int] = (), 0
        self._since = 0.0

    def take(self, ops: tuple[str, ...] = (), carried: int = 0, *, idle: bool = False) -> None:
        """Sleep while these ops are under way, or between runs.

        Parameters
        ----------
        carried : messages that have come or gone so far
        """
        longest, growth = (IDLE_NAP_SECONDS, IDLE_NAP_GROWTH) if idle else (self._longest, NAP_GROWTH)
        before, self._state = self._state, (ops, carried)
        if self._state != before:
            now = time.perf_counter()
            first = (now - self._since) * FIRST_NAP_SHARE if ops == before[0] else 0.0
            self._next, self._since = max(FIRST_POLL_SLEEP_SECONDS, first), now
        time.sleep(min(self._next, longest))
        self._next = min(growth * self._next, longest)
