"""What keeps a cable at its rate: a token bucket, and two queues before it, of which that of small packets goes first.

How far a message has come is told to its sender by small packets, TCP's and MPI's, over links that others
may keep busy.  Where they wait behind large ones, a sender has all under way that it may and waits, too:
on a torus of 2 x 3 hosts a way whose answers pass two busy links got 0.77 of its rate, with queues of 5
to 300 ms alike; with small packets first, 1.00.  Networks made for MPI have virtual lanes for that.
"""

from typing import Any

from pyroute2 import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_pfifo

QUEUE_SECONDS = 0.05
"""What waits before a cable at most: more is dropped, as by a switch of small memory."""
SMALL_BYTES = 128
"""With its headers, a small packet has less: acknowledgements, and messages that say that another has come."""
BUCKET, QUEUES, LARGE = 0x10000, 0x20000, 0x30000
"""Handles of the bucket, of what chooses between its two queues, and of that of large packets."""
AT_ONCE = {"rate": "10gbit", "burst": 1 << 20, "cburst": 1 << 20}
"""A queue may have all that the bucket lets through."""
IPV4 = 0x0800  # ETH_P_IP of linux/if_ether.h
plugins.setdefault("bfifo", sched_pfifo)  # which pyroute2 does not know: its message is that of pfifo


def limit(socket: Any, index: int, rate: float, burst: int) -> None:
    """Keep an interface at a rate [B/s] by a token bucket of so many bytes, instead of what kept it before."""
    socket.tc("replace", "tbf", index, BUCKET, rate=f"{round(8 * rate)}bit", burst=burst, limit=_waiting(rate, burst))


def let_small_ones_by(socket: Any, index: int, rate: float, burst: int) -> bool:
    """Have small packets pass by large ones before the bucket of an interface; whether the kernel can do that."""
    large, first = QUEUES + 2, QUEUES + 1
    try:
        socket.tc("add", "htb", index, QUEUES, parent=BUCKET + 1, default=large - QUEUES)
        for rank, queue in enumerate((first, large)):
            socket.tc("add-class", "htb", index, queue, parent=QUEUES, prio=rank, **AT_ONCE)
        socket.tc("add", "bfifo", index, LARGE, parent=large, limit=_waiting(rate, burst))
        socket.tc("add-filter", "u32", index, parent=QUEUES, prio=1, protocol=IPV4, target=first, keys=[_is_small()])
    except NetlinkError:
        return False
    return True


def _is_small() -> str:
    """That the length of a packet, the second 16 bits of its header, is below `SMALL_BYTES`, a power of two.

    >>> _is_small()
    '0x0000/0xff80+2'
    """
    return f"0x0000/{0x10000 - SMALL_BYTES:#06x}+2"


def _waiting(rate: float, burst: int) -> int:
    """Bytes that wait before a cable at most, with those of its bucket."""
    return burst + int(QUEUE_SECONDS * rate)
