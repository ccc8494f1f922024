"""Namespaces, cables, token buckets and routes, as Linux makes them.

Nothing here touches an interface outside the namespaces that it is given: both
ends of a cable are made inside.  The kernel's interface is spoken by pyroute2,
so that no program of the system is needed.
"""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError, netns

from algorithms.errors import InputError, RunError
from studies.laboratory.wiring import Port, Route, Wiring
from studies.token_buckets import burst_bytes

FOLDER = Path("/run/netns")
LINK_SCOPE = 253  # RT_SCOPE_LINK of linux/rtnetlink.h: the other end is on the cable itself
MAIN_TABLE = 254
IFF_UP = 1  # linux/if.h
FIRST_TABLE = 1000
"""Routing tables for packets of one source each, from this number on."""
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # linux/sched.h
QUEUE_SECONDS = 0.05
"""What waits before a cable at most: more is dropped, as by a switch of small memory."""
CONGESTION_CONTROL = "reno"
"""By which hosts share links, whatever this machine prefers: every kernel has it.

With BBR, the default of some, overlapped steps are 2 to 4 % longer, and their spread is twice as large.
Source: RFC 5681.
"""
END_SECONDS = 5.0
TRY_NAMESPACE = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({CLONE_NEWNET}) != 0)"


def check_allowed() -> None:
    """Refuse a machine on which no laboratory can be made.

    Raises
    ------
    InputError : no Linux, not root, or root of a container that may not
    """
    if not Path("/proc/self/ns/net").exists():
        raise InputError("a laboratory is made of Linux network namespaces, which this system does not have")
    if os.geteuid() != 0:
        raise InputError("a laboratory needs root, who alone may make network namespaces: run it with sudo")
    if not _may_make_namespaces():
        raise InputError("a laboratory needs a root who may make network namespaces: this container's may not")


def _may_make_namespaces() -> bool:
    """Whether the kernel lets a child of this process have a network namespace of its own."""
    tried = subprocess.run([sys.executable, "-S", "-c", TRY_NAMESPACE], check=False, stderr=subprocess.DEVNULL)
    return tried.returncode == 0


def exists(name: str) -> bool:
    return (FOLDER / name).exists()


def build(wiring: Wiring, names: Mapping[str, str]) -> None:
    """Make all namespaces of a wiring and join them.

    Parameters
    ----------
    names : of the namespace of each place

    Raises
    ------
    RunError : what the kernel refused
    """
    try:
        for name in names.values():
            netns.create(name)
        _connect(wiring, names)
    except (NetlinkError, OSError) as error:
        raise RunError(f"the kernel refused a part of laboratory {wiring.name!r}: {error}") from error


def _connect(wiring: Wiring, names: Mapping[str, str]) -> None:
    sockets: dict[str, Any] = {place: socket_of(name) for place, name in names.items()}
    try:
        for cable in wiring.cables:
            one, other = cable.one, cable.other
            end = {"ifname": other.interface, "address": other.hardware, "net_ns_fd": names[other.place]}
            sockets[one.place].link("add", ifname=one.interface, kind="veth", address=one.hardware, peer=end)
        for place, socket in sockets.items():
            socket.link("set", index=1, state="up")  # lo
            ports = [end for cable in wiring.cables for end in (cable.one, cable.other) if end.place == place]
            found = {port.interface: _start(socket, port, wiring.addresses.get(place)) for port in ports}
            for route in (one for one in wiring.routes if one.place == place):
                _add_route(socket, route, found[route.interface])
        for place in wiring.switches:
            with inside(names[place]):
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for place in wiring.addresses:
            with inside(names[place]):
                Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text(CONGESTION_CONTROL)
    finally:
        for socket in sockets.values():
            socket.close()


def socket_of(name: str) -> Any:
    """A netlink socket that speaks with the kernel of a namespace."""
    with inside(name):
        return IPRoute()


def _start(socket: Any, port: Port, address: str | None) -> int:
    """The index of an interface that is up, with its rate."""
    (index,) = socket.link_lookup(ifname=port.interface)
    socket.link("set", index=index, state="up")
    if address is not None:
        socket.addr("add", index=index, address=address, prefixlen=32)
    if port.rate:
        limit(socket, index, port.rate, burst_bytes(port.rate))
    return int(index)


def limit(socket: Any, index: int, rate: float, burst: int) -> None:
    """Keep an interface at a rate [B/s] by a token bucket of so many bytes, instead of what kept it before."""
    queue = burst + int(QUEUE_SECONDS * rate)
    socket.tc("replace", "tbf", index, 0, rate=f"{round(8 * rate)}bit", burst=burst, limit=queue)


def interfaces_down(name: str) -> list[str]:
    """Those of a namespace that were taken down."""
    with socket_of(name) as kernel:
        return [one.get_attr("IFLA_IFNAME") for one in kernel.get_links() if not one["flags"] & IFF_UP]


def _add_route(socket: Any, route: Route, index: int) -> None:
    table = MAIN_TABLE
    if route.source:
        table = FIRST_TABLE + int(route.source.rpartition(".")[2])
        with _known_already():
            socket.rule("add", src=route.source, src_len=32, table=table, priority=table)
    socket.route("add", dst=f"{route.target}/32", oif=index, scope=LINK_SCOPE, table=table)
    with _known_already():
        socket.neigh("add", dst=route.target, lladdr=route.next_hardware, ifindex=index, state="permanent")


@contextmanager
def _known_already() -> Iterator[None]:
    """What several routes need is made by the first."""
    try:
        yield
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Within a namespace, for this thread."""
    netns.pushns(name)
    try:
        yield
    finally:
        netns.popns()


def enter(name: str, host: str) -> None:
    """Within a namespace for good, for this process, on a host of that name.

    Raises
    ------
    RunError : a namespace that is gone, or that this user may not enter
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        namespace = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"namespace {name}: {error.strerror}") from None
    if libc.setns(namespace, CLONE_NEWNET) or libc.unshare(CLONE_NEWUTS):
        raise RunError(f"namespace {name}: {os.strerror(ctypes.get_errno())}")
    os.close(namespace)
    encoded = host.encode()
    libc.sethostname(encoded, len(encoded))


def remove(name: str) -> None:
    """End what runs in a namespace, and the namespace with all its interfaces; nothing where it is gone.

    Raises
    ------
    RunError : a process in it that cannot be ended
    """
    if not exists(name):
        return
    deadline = time.monotonic() + END_SECONDS
    while running := list(processes(name)):
        if time.monotonic() > deadline:
            raise RunError(f"namespace {name}: processes {', '.join(map(str, running))} cannot be ended")
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    with suppress(FileNotFoundError):
        netns.remove(name)


def processes(name: str) -> Iterator[int]:
    """Those that run in a namespace."""
    wanted = (FOLDER / name).stat()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found = entry.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield int(entry.parts[2])
