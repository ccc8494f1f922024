"""Message options: chunk size of our own collectives, polling back-off of a waiting rank, and the progress thread."""

import time
from dataclasses import dataclass
from typing import Literal

from quadrille.runtime.host.world import ComputeHost

Progress = Literal["none", "thread"]
"""The means that advances communication during local work: none, or a thread."""

CHUNK_BYTES = 45 * 1448 - 24
"""The default chunk size. With its header, a chunk stays below 64 KiB and ends at a TCP segment boundary.

- Open MPI sends messages below 64 KiB eagerly over TCP. Longer messages that two ranks send to each other serialise:
  97 of 200 Mbit/s instead of 170 to 190 (four hosts of an emulated network).
- Linux hands up to 64 KiB to a link at once, in whole segments of 1448 bytes; Open MPI adds a header of 22 bytes. A
  chunk that ends inside a segment burst arrives only with the whole burst. When one of three hosts forwards 1.2 MB at
  225 Mbit/s, the last byte arrives after 48.6 ms with chunks of 60 KiB and after 46.2 ms with this size.
"""
FIRST_POLL_SLEEP_SECONDS, MAX_POLL_SLEEP_SECONDS = 5e-5, 5e-4
"""The first and the longest sleep between two polls, where ranks share cores.

Eight small broadcasts in a row take 66 ms with these values and 96 ms with sleeps of 2 ms; a small training step takes
254 ms and 286 ms; large steps do not differ (four hosts, 358 Mbit/s). Halving the values gains nothing.
"""
FIRST_SLEEP_SHARE, SLEEP_GROWTH = 1 / 16, 1.1
"""The first sleep as a share of the time that the last message took, and the factor from one sleep to the next."""
IDLE_SLEEP_SECONDS, IDLE_SLEEP_GROWTH = 2e-3, 2.0
"""The longest sleep between runs and its growth factor. Polling takes core time from ranks that have not arrived yet.
"""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The options with which a rank sends messages and waits for messages.

    Parameters
    ----------
    chunk_bytes : chunk size of our own collectives; 0 sends the message of each step whole [B]
    poll_sleep_seconds : longest sleep of a waiting rank between two polls; 0 polls without a pause [s]
    progress : "thread" if a thread advances communication during local work
    """

    chunk_bytes: int = 0
    poll_sleep_seconds: float = 0.0
    progress: Progress = "none"


WHOLE_MESSAGES = MessageOptions()
"""Options without chunks and without sleeps: a waiting rank polls without a pause."""


def default_message_options(host: ComputeHost) -> MessageOptions:
    """The default options on a host.

    Whole messages and constant polling are the default. In an emulated network, whose hosts share the cores of one
    machine, messages are chunked and a waiting rank sleeps between polls.

    >>> default_message_options(ComputeHost("node", ranks=(0, 1), cores=2))
    MessageOptions(chunk_bytes=0, poll_sleep_seconds=0.0, progress='none')
    """
    if host.sharing:
        return MessageOptions(CHUNK_BYTES, MAX_POLL_SLEEP_SECONDS)
    return WHOLE_MESSAGES


def default_progress(host: ComputeHost, *, hosts: int, threads: int) -> Progress:
    """The default of `progress`: a thread with several hosts, and with one host a thread if some cores are free.

    Between hosts, messages proceed by themselves and need a core only for moments. Within a host, the computing cores
    copy the messages.

    >>> node = ComputeHost("node", ranks=(0, 1), cores=4)
    >>> default_progress(node, hosts=1, threads=2), default_progress(node, hosts=1, threads=1)
    ('none', 'thread')
    >>> default_progress(node, hosts=2, threads=2)
    'thread'

    Parameters
    ----------
    host : host of this rank
    hosts : number of hosts with ranks
    threads : BLAS threads of each rank
    """
    oversubscribed = len(host.ranks) * threads >= host.cores
    return "thread" if hosts > 1 or not oversubscribed else "none"


class PollingBackoff:
    """The exponential back-off of a waiting rank: it sleeps between two polls, longer each time.

    The first sleep is a share of the last message's duration. So short messages are polled often and long messages
    rarely: a poll takes core time.

    Parameters
    ----------
    longest : longest sleep [s]
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._next = FIRST_POLL_SLEEP_SECONDS
        self._state: tuple[tuple[str, ...], int] = (), 0
        self._since = 0.0

    def sleep(self, ops: tuple[str, ...] = (), completed: int = 0, *, idle: bool = False) -> None:
        """Sleep once.

        Parameters
        ----------
        ops : names of the open ops; a change ends the growth of the sleeps
        completed : number of messages that have completed; a change ends the growth, too
        idle : whether the rank waits between runs
        """
        longest, growth = (IDLE_SLEEP_SECONDS, IDLE_SLEEP_GROWTH) if idle else (self._longest, SLEEP_GROWTH)
        before, self._state = self._state, (ops, completed)
        if self._state != before:
            now = time.perf_counter()
            first = (now - self._since) * FIRST_SLEEP_SHARE if ops == before[0] else 0.0
            self._next, self._since = max(FIRST_POLL_SLEEP_SECONDS, first), now
        time.sleep(min(self._next, longest))
        self._next = min(growth * self._next, longest)
