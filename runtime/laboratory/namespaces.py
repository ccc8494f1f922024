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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError, netns

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.units import format_bytes_per_second
from quadrille.runtime.laboratory import queues
from quadrille.runtime.laboratory.namespace_plan import (
    ForwardingRoute,
    NamespacePlan,
    Pair,
    Port,
    VethPair,
    is_of_cable,
)
from quadrille.runtime.laboratory.token_buckets import burst_bytes

FOLDER = Path("/run/netns")
LINK_SCOPE = 253  # RT_SCOPE_LINK of linux/rtnetlink.h: the other end is on the cable itself
MAIN_TABLE = 254
IFF_UP = 1  # linux/if.h
FIRST_TABLE = 1000
"""Routing tables for packets of one source each, from this number on."""
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # linux/sched.h
CONGESTION_CONTROL = "reno"
"""By which hosts share links, whatever this machine prefers: every kernel has it.

With BBR, the default of some, overlapped steps are 2 to 4 % longer, and their spread is twice as large.
Source: RFC 5681.
"""
SETTINGS = Path("/proc/sys/net/ipv4")
ANY_WAY = {"conf/all/rp_filter": "0", "conf/default/rp_filter": "0"}
"""Of every place, whatever it has from this machine: packets come by a way that those back need not take."""
CABLES = "cables are made by its module veth"
BUCKETS = "token buckets are made by its module sch_tbf"
TURNS = "pairs of hosts take turns by its modules sch_htb and cls_u32"
RULES = "routes by source are found by its policy routing, CONFIG_IP_MULTIPLE_TABLES"
"""What of a kernel a laboratory needs and some are built without."""
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


def build(wiring: NamespacePlan, names: Mapping[str, str]) -> None:
    """Make all namespaces of a wiring and join them.

    Parameters
    ----------
    names : of the namespace of each place

    Raises
    ------
    RunError : what the kernel refused
    """
    with _asked(f"a part of laboratory {wiring.name!r}"):
        for place, name in names.items():
            with _asked(f"the namespace of {place}"):
                netns.create(name)
        _connect(wiring, names)


@contextmanager
def _asked(what: str, made_by: str = "") -> Iterator[None]:
    """What the kernel is asked for, which is named where it refuses.

    Parameters
    ----------
    made_by : the part of the kernel that this takes, in words

    Raises
    ------
    RunError : it refused
    """
    try:
        yield
    except (NetlinkError, OSError) as error:
        reason = error.args[1] if len(error.args) > 1 else error
        raise RunError(f"the kernel refused {what}: {reason}" + (f" ({made_by})" if made_by else "")) from error


def _connect(wiring: NamespacePlan, names: Mapping[str, str]) -> None:
    _set_up(wiring, names)
    sockets: dict[str, Any] = {place: socket_of(name) for place, name in names.items()}
    ends = [pair for cable in wiring.cables for pair in ((cable.one, cable.other), (cable.other, cable.one))]
    hosts = {address: host for host, address in wiring.addresses.items()}
    try:
        for cable in wiring.cables:
            _lay(cable, sockets[cable.one.place], names[cable.other.place])
        for place, socket in sockets.items():
            socket.link("set", index=1, state="up")  # lo
            address = wiring.addresses.get(place)
            own = [(port, far) for port, far in ends if port.place == place]
            found = {port.interface: _start(socket, port, far, address) for port, far in own}
            for port, far in own:
                _keep_rate(socket, found[port.interface], port, far, wiring.passing.get(port, ()))
            for route in (one for one in wiring.routes if one.place == place):
                _add_route(socket, route, found[route.interface], hosts)
    finally:
        for socket in sockets.values():
            socket.close()


def _set_up(wiring: NamespacePlan, names: Mapping[str, str]) -> None:
    """How the kernel treats packets at each place, before that has a port."""
    for place, name in names.items():
        own = {"ip_forward": "1"} if place in wiring.switches else {"tcp_congestion_control": CONGESTION_CONTROL}
        with inside(name):
            for setting, value in (ANY_WAY | own).items():
                with _asked(f"net.ipv4.{setting.replace('/', '.')} = {value} at {place}"):
                    (SETTINGS / setting).write_text(value)


def _lay(cable: VethPair, socket: Any, other_namespace: str) -> None:
    one, other = cable.one, cable.other
    end = {"ifname": other.interface, "address": other.hardware, "net_ns_fd": other_namespace}
    with _asked(f"the cable from {one.place} to {other.place}", CABLES):
        socket.link("add", ifname=one.interface, kind="veth", address=one.hardware, peer=end)


def socket_of(name: str) -> Any:
    """A netlink socket that speaks with the kernel of a namespace."""
    with inside(name):
        return IPRoute()


def _start(socket: Any, port: Port, far: Port, address: str | None) -> int:
    """The index of an interface that is up."""
    (index,) = socket.link_lookup(ifname=port.interface)
    with _asked(f"the port of {port.place} to {far.place}"):
        socket.link("set", index=index, state="up")
        if address is not None:
            socket.addr("add", index=index, address=address, prefixlen=32)
    return int(index)


def _keep_rate(socket: Any, index: int, port: Port, far: Port, passing: Sequence[Pair]) -> None:
    """Have what leaves by a port go at its rate, if it has one, and pairs of hosts take turns."""
    if not port.rate:
        return
    with _asked(f"the token bucket of {format_bytes_per_second(port.rate)} from {port.place} to {far.place}", BUCKETS):
        queues.limit(socket, index, port.rate, burst_bytes(port.rate))
    with _asked(f"the queues from {port.place} to {far.place}", TURNS):
        queues.add_fair_queues(socket, index, passing)


def interfaces_down(name: str) -> list[str]:
    """Ends of cables in a namespace that were taken down; what the kernel makes there by itself never was up."""
    with socket_of(name) as kernel:
        down = [one.get_attr("IFLA_IFNAME") for one in kernel.get_links() if not one["flags"] & IFF_UP]
    return [interface for interface in down if is_of_cable(interface)]


def _add_route(socket: Any, route: ForwardingRoute, index: int, hosts: Mapping[str, str]) -> None:
    """A route, and the rule by which packets of one source take it.

    Parameters
    ----------
    hosts : by their addresses
    """
    table, whose = MAIN_TABLE, ""
    if route.source:
        table, whose = FIRST_TABLE + int(route.source.rpartition(".")[2]), f" for packets of {hosts[route.source]}"
        with _asked(f"the rule at {route.place}{whose}", RULES), _known_already():
            socket.rule("add", src=route.source, src_len=32, table=table, priority=table)
    with _asked(f"the route from {route.place} to {hosts[route.target]}{whose}"):
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
    """Within a namespace, for this thread.

    Raises
    ------
    RunError : a namespace that is gone, or that this user may not enter
    """
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _join(name)
        yield
    finally:
        _set_namespace(here)
        os.close(here)


def enter(name: str, host: str) -> None:
    """Within a namespace for good, for this process, on a host of that name.

    Raises
    ------
    RunError : a namespace that is gone, or that this user may not enter
    """
    _join(name)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUTS):
        raise RunError(f"namespace {name}: {os.strerror(ctypes.get_errno())}")
    encoded = host.encode()
    libc.sethostname(encoded, len(encoded))


def _join(name: str) -> None:
    """Take this thread into a namespace, which is not made where it is gone (pyroute2 would make another)."""
    try:
        there = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(there)
        finally:
            os.close(there)
    except OSError as error:
        raise RunError(f"namespace {name}: {error.strerror}") from None


def _set_namespace(handle: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


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
    """Those that run in a namespace; none where it is gone."""
    try:
        wanted = (FOLDER / name).stat()
    except FileNotFoundError:
        return
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found = entry.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield int(entry.parts[2])
