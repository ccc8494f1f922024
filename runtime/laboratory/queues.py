"""The queueing discipline of an emulated cable: one fair queue for each pair of hosts, then a token bucket.

    ┌ pair ┐
    │ pair ├── round robin ── token bucket ── cable
    └ pair ┘

Each pair of hosts whose path uses the cable has its own queue, as in fabrics whose switches serve their inputs in turn
with credit-based flow control. So pairs that share a cable get equal shares, the max-min shares of the simulator, and
acknowledgements do not wait behind other messages. Without fair queues, a cable is a drop-tail queue: the shares are
random, and two rings over one cable wait for the slower one.

The fair queues are classes of a hierarchical token bucket (HTB) whose own rates never limit.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

from quadrille.runtime.laboratory.namespace_plan import Pair
from quadrille.runtime.laboratory.token_buckets import WHOLE_PACKET

BUCKET, TURNS = 0x10000, 0x20000
"""Handles of the token bucket and of the queues before it."""
FASTER_THAN_ANY, AT_ONCE = "32gbit", 4 << 20
"""The rate of a queue, which never limits, and its burst [B]."""
ETHERNET_IPV4 = 0x0800
SOURCE_AT, TARGET_AT = 12, 16
"""Offsets of the addresses in an IPv4 header [B].  Source: RFC 791."""
QUEUE_SECONDS = 0.05
"""The longest wait in a bucket without fair queues; further packets are dropped [s]."""


def limit(socket: Any, index: int, rate: float, burst: int) -> None:
    """Limit an interface to a rate [B/s] by a token bucket of `burst` bytes, which replaces an earlier one."""
    queue = burst + int(QUEUE_SECONDS * rate)
    socket.tc("replace", "tbf", index, BUCKET, rate=f"{round(8 * rate)}bit", burst=burst, limit=queue)


def add_fair_queues(socket: Any, index: int, pairs: Sequence[Pair]) -> None:
    """Give each pair of hosts a queue before the token bucket of an interface; the queues send packets in turn."""
    socket.tc("add", "htb", index, TURNS, parent=BUCKET + 1, default=0)
    rates = {"rate": FASTER_THAN_ANY, "burst": AT_ONCE, "cburst": AT_ONCE, "quantum": WHOLE_PACKET}
    for number, (source, target) in enumerate(pairs, start=1):
        queue = TURNS + number
        socket.tc("add-class", "htb", index, queue, parent=TURNS, **rates)
        keys = [f"{int(IPv4Address(source)):#x}/0xffffffff+{SOURCE_AT}"]
        keys += [f"{int(IPv4Address(target)):#x}/0xffffffff+{TARGET_AT}"]
        filter_options = {"protocol": ETHERNET_IPV4, "prio": 1, "target": queue, "keys": keys}
        socket.tc("add-filter", "u32", index, parent=TURNS, **filter_options)
