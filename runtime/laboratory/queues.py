"""What waits before a cable: a token bucket keeps the rate, and pairs of hosts take turns before it.

    ┌ pair ┐
    │ pair ├── in turn ── token bucket ── cable
    └ pair ┘

Each pair of hosts whose way goes over the cable has a queue of its own, as in fabrics whose switches ask their inputs
in turn and send nothing that the next one has no room for.  So pairs that share a cable get equal parts of it, the
max-min of the simulator, and what answers one waits behind nobody else's messages.  Without turns a cable is a
queue that drops: who gets which part is chance, and two rings over one cable wait for whoever got less.

Turns are taken by a hierarchical token bucket whose own rates hold nobody back.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

from quadrille.runtime.laboratory.namespace_plan import Pair
from quadrille.runtime.laboratory.token_buckets import WHOLE_PACKET

BUCKET, TURNS = 0x10000, 0x20000
"""Handles of the token bucket and of what is behind it."""
FASTER_THAN_ANY, AT_ONCE = "32gbit", 4 << 20
"""The rate of a queue, above that of every cable, and what it lets through at once [B]."""
ETHERNET_IPV4 = 0x0800
SOURCE_AT, TARGET_AT = 12, 16
"""Where the addresses are in an IPv4 header [B].  Source: RFC 791."""
QUEUE_SECONDS = 0.05
"""What a bucket that stands alone lets wait at most: more is dropped."""


def limit(socket: Any, index: int, rate: float, burst: int) -> None:
    """Keep an interface at a rate [B/s] by a token bucket of so many bytes, instead of the one before."""
    queue = burst + int(QUEUE_SECONDS * rate)
    socket.tc("replace", "tbf", index, BUCKET, rate=f"{round(8 * rate)}bit", burst=burst, limit=queue)


def add_fair_queues(socket: Any, index: int, pairs: Sequence[Pair]) -> None:
    """Have pairs of hosts take turns before the token bucket of an interface, a packet each."""
    socket.tc("add", "htb", index, TURNS, parent=BUCKET + 1, default=0)
    rates = {"rate": FASTER_THAN_ANY, "burst": AT_ONCE, "cburst": AT_ONCE, "quantum": WHOLE_PACKET}
    for number, (source, target) in enumerate(pairs, start=1):
        queue = TURNS + number
        socket.tc("add-class", "htb", index, queue, parent=TURNS, **rates)
        keys = [f"{int(IPv4Address(source)):#x}/0xffffffff+{SOURCE_AT}"]
        keys += [f"{int(IPv4Address(target)):#x}/0xffffffff+{TARGET_AT}"]
        told = {"protocol": ETHERNET_IPV4, "prio": 1, "target": queue, "keys": keys}
        socket.tc("add-filter", "u32", index, parent=TURNS, **told)
