"""Creation and removal of a laboratory's network namespaces, cables, token buckets and routes in the Linux kernel.

No interface outside the given namespaces is touched: both ends of a cable are created inside. pyroute2 speaks the
kernel's netlink protocol, so no system program is needed.
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
"""Number of the first routing table for packets of one source."""
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # linux/sched.h
CONGESTION_CONTROL = "reno"
"""The congestion control of all hosts, whatever the machine's default: every kernel has it.

With BBR, the default of some machines, overlapped steps are 2 to 4 % longer and their spread is twice as large.
Source: RFC 5681.
"""
SETTINGS = Path("/proc/sys/net/ipv4")
NO_PATH_FILTER = {"conf/all/rp_filter": "0", "conf/default/rp_filter": "0"}
"""Settings of every node: forward and return paths may differ."""
CABLES_NEED = "cables are made by its module veth"
BUCKETS_NEED = "token buckets are made by its module sch_tbf"
QUEUES_NEED = "pairs of hosts take turns by its modules sch_htb and cls_u32"
RULES_NEED = "routes by source are found by its policy routing, CONFIG_IP_MULTIPLE_TABLES"
"""Parts of the kernel that a laboratory needs and that some kernels lack, for messages."""
END_SECONDS = 5.0
TRY_NAMESPACE = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({CLONE_NEWNET}) != 0)"


def check_allowed(trial: str = TRY_NAMESPACE) -> None:
    """Refuse a machine on which no laboratory can be created.

    Parameters
    ----------
    trial : Python program that creates a network namespace, and exits with 0 if the kernel lets it

    Raises
    ------
    InputError : no Linux, not root, or root of a container without the permission
    """
    if not Path("/proc/self/ns/net").exists():
        raise InputError("a laboratory is made of Linux network namespaces, which this system does not have")
    if os.geteuid() != 0:
        raise InputError("a laboratory needs root, who alone may make network namespaces: run it with sudo")
    if not _may_make_namespaces(trial):
        raise InputError("a laboratory needs a root who may make network namespaces: this container's may not")


def _may_make_namespaces(trial: str) -> bool:
    """Whether the kernel lets a child of this process create a network namespace."""
    tried = subprocess.run([sys.executable, "-S", "-c", trial], check=False, stderr=subprocess.DEVNULL)
    return tried.returncode == 0


def exists(name: str) -> bool:
    return (FOLDER / name).exists()


def build(plan: NamespacePlan, names: Mapping[str, str], settings: Path = SETTINGS) -> None:
    """Create and connect all namespaces of a plan.

    Parameters
    ----------
    names : namespace name of each node
    settings : folder with the kernel's IPv4 settings, as seen from inside a namespace

    Raises
    ------
    RunError : the kernel refused something
    """
    with _kernel_request(f"a part of laboratory {plan.name!r}"):
        for place, name in names.items():
            with _kernel_request(f"the namespace of {place}"):
                netns.create(name)
        _set_up(plan, names, settings)
        _connect(plan, names)


@contextmanager
def _kernel_request(request: str, needed_module: str = "") -> Iterator[None]:
    """A context for a request to the kernel; a refusal becomes an error that names the request.

    Parameters
    ----------
    needed_module : part of the kernel that the request needs, in words

    Raises
    ------
    RunError : the kernel refused
    """
    try:
        yield
    except (NetlinkError, OSError) as error:
        reason = error.args[1] if len(error.args) > 1 else error
        raise RunError(
            f"the kernel refused {request}: {reason}" + (f" ({needed_module})" if needed_module else "")
        ) from error


def _connect(plan: NamespacePlan, names: Mapping[str, str]) -> None:
    sockets: dict[str, Any] = {place: socket_of(name) for place, name in names.items()}
    ends = [pair for cable in plan.cables for pair in ((cable.near, cable.far), (cable.far, cable.near))]
    hosts = {address: host for host, address in plan.addresses.items()}
    try:
        for cable in plan.cables:
            _create_cable(cable, sockets[cable.near.place], names[cable.far.place])
        for place, socket in sockets.items():
            socket.link("set", index=1, state="up")  # lo
            address = plan.addresses.get(place)
            own = [(port, far) for port, far in ends if port.place == place]
            next_hops = {port.interface: _bring_up(socket, port, far, address) for port, far in own}
            for port, far in own:
                _limit_rate(socket, next_hops[port.interface], port, far, plan.passing.get(port, ()))
            for route in (planned for planned in plan.routes if planned.place == place):
                _add_route(socket, route, next_hops[route.interface], hosts)
    finally:
        for socket in sockets.values():
            socket.close()


def _set_up(plan: NamespacePlan, names: Mapping[str, str], settings: Path) -> None:
    """Set the kernel's network settings of each node, before it has a port."""
    for place, name in names.items():
        own = {"ip_forward": "1"} if place in plan.switches else {"tcp_congestion_control": CONGESTION_CONTROL}
        with inside(name):
            for setting, value in (NO_PATH_FILTER | own).items():
                with _kernel_request(f"net.ipv4.{setting.replace('/', '.')} = {value} at {place}"):
                    (settings / setting).write_text(value)


def _create_cable(cable: VethPair, socket: Any, other_namespace: str) -> None:
    near, far = cable.near, cable.far
    end = {"ifname": far.interface, "address": far.hardware, "net_ns_fd": other_namespace}
    with _kernel_request(f"the cable from {near.place} to {far.place}", CABLES_NEED):
        socket.link("add", ifname=near.interface, kind="veth", address=near.hardware, peer=end)


def socket_of(name: str) -> Any:
    """A netlink socket of a namespace."""
    with inside(name):
        return IPRoute()


def _bring_up(socket: Any, port: Port, far: Port, address: str | None) -> int:
    """The index of an interface after it is brought up."""
    (index,) = socket.link_lookup(ifname=port.interface)
    with _kernel_request(f"the port of {port.place} to {far.place}"):
        socket.link("set", index=index, state="up")
        if address is not None:
            socket.addr("add", index=index, address=address, prefixlen=32)
    return int(index)


def _limit_rate(socket: Any, index: int, port: Port, far: Port, passing: Sequence[Pair]) -> None:
    """Limit the rate of a port, if it has a limit, and add fair queues for the pairs of hosts."""
    if not port.rate:
        return
    with _kernel_request(
        f"the token bucket of {format_bytes_per_second(port.rate)} from {port.place} to {far.place}", BUCKETS_NEED
    ):
        queues.limit(socket, index, port.rate, burst_bytes(port.rate))
    with _kernel_request(f"the queues from {port.place} to {far.place}", QUEUES_NEED):
        queues.add_fair_queues(socket, index, passing)


def interfaces_down(name: str) -> list[str]:
    """The cable ends in a namespace that were taken down. Interfaces that the kernel created were never up."""
    with socket_of(name) as kernel:
        down = [link.get_attr("IFLA_IFNAME") for link in kernel.get_links() if not link["flags"] & IFF_UP]
    return [interface for interface in down if is_of_cable(interface)]


def _add_route(socket: Any, route: ForwardingRoute, index: int, hosts: Mapping[str, str]) -> None:
    """Add a route, and the rule by which packets of one source take it.

    Parameters
    ----------
    hosts : host by address
    """
    table, suffix = MAIN_TABLE, ""
    if route.source:
        table, suffix = FIRST_TABLE + int(route.source.rpartition(".")[2]), f" for packets of {hosts[route.source]}"
        with _kernel_request(f"the rule at {route.place}{suffix}", RULES_NEED), _ignore_existing():
            socket.rule("add", src=route.source, src_len=32, table=table, priority=table)
    with _kernel_request(f"the route from {route.place} to {hosts[route.target]}{suffix}"):
        socket.route("add", dst=f"{route.target}/32", oif=index, scope=LINK_SCOPE, table=table)
        with _ignore_existing():
            socket.neigh("add", dst=route.target, lladdr=route.next_hardware, ifindex=index, state="permanent")


@contextmanager
def _ignore_existing() -> Iterator[None]:
    """A context that ignores "exists already": several routes need the same rule, and the first creates it."""
    try:
        yield
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise


@contextmanager
def inside(name: str) -> Iterator[None]:
    """A context in which this thread is in a namespace.

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
    """Move this process into a namespace for good, under the host name `host`.

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
    """Move this thread into an existing namespace. (pyroute2 would create a missing one.)"""
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
    """Kill the processes in a namespace and remove it with all its interfaces; does nothing if it is gone.

    Raises
    ------
    RunError : a process in it that cannot be killed
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
    """The processes in a namespace; none if it is gone."""
    try:
        wanted = (FOLDER / name).stat()
    except FileNotFoundError:
        return
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            status = entry.stat()
            if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield int(entry.parts[2])
