"""Trial of token bucket sizes: the rate that a link's token bucket lets through, and the CPU time that it costs.

    python -m quadrille.studies.laboratory_trials.token_bucket_sizes > token_bucket_sizes.csv      (as root)

The rate of a link in a laboratory (a network of Linux network namespaces) is limited by a token bucket filter of the
kernel, tc-tbf(8).  Four hosts on one switch each send to the next host over a plain TCP connection for one second, for
several rates and bucket sizes.  The CPU time is that of the sending and receiving processes and of interrupts.
`runtime/laboratory/token_buckets.py` takes its bucket size from the result.
"""

import csv
import multiprocessing
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.host.processes import end_with_parent
from quadrille.runtime.laboratory import laboratory, namespaces, queues
from quadrille.runtime.laboratory.namespace_plan import NamespacePlan
from quadrille.runtime.laboratory.register import LaboratoryRecord
from quadrille.studies.laboratory_trials.trial_conditions import busy_seconds, conditions_line

RATES = ("20mbit", "200mbit", "1gbit")
BUCKETS = (4_000, 16_384, 25_000, 65_536, 70_000, 80_000, 131_072)
PACKETS = ("irq", "softirq")
"""Kinds of CPU time in proc(5) that the kernel spends on packets."""
HOSTS, PORT, SECONDS, SEND_BYTES = 4, 5000, 1.0, 1 << 16


@dataclass(frozen=True, slots=True)
class ReceivedData:
    """The data that a host received.

    Parameters
    ----------
    size : number of bytes
    seconds : time from the first to the last byte [s]
    """

    size: int
    seconds: float


def main() -> None:
    """Measure every rate and bucket size, and print a CSV row for each."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    print(conditions_line())
    table.writerow(["bytes_per_second", "bucket_bytes", "share_of_rate", "core_seconds_per_byte"])
    for rate in RATES:
        spec = parse_laboratory(f"star:hosts={HOSTS}", rate, name=f"buckets{os.getpid()}")
        with laboratory.standing(spec) as entry:
            link_rate = min(entry.rates.values())
            for bucket in BUCKETS:
                _set_buckets(spec.plan, entry, bucket)
                share, cost = _measure(entry, link_rate)
                table.writerow([f"{link_rate:.0f}", bucket, f"{share:.3f}", f"{cost:.2e}"])
                sys.stdout.flush()


def _set_buckets(plan: NamespacePlan, entry: LaboratoryRecord, bucket: int) -> None:
    """Set the bucket of every link in both directions to a size [bytes]."""
    for port in (end for cable in plan.cables for end in (cable.near, cable.far)):
        with namespaces.socket_of(entry.namespaces[port.place]) as kernel:
            (index,) = kernel.link_lookup(ifname=port.interface)
            queues.limit(kernel, index, port.rate, bucket)


def _measure(entry: LaboratoryRecord, rate: float) -> tuple[float, float]:
    """Mean received share of the rate, and CPU seconds per byte, while all hosts send at the same time."""
    namespace_names = [entry.namespaces[host] for host in entry.addresses]
    addresses = list(entry.addresses.values())
    child_seconds = _child_seconds()
    results: multiprocessing.Queue[ReceivedData | None] = multiprocessing.Queue()
    receivers = [multiprocessing.Process(target=_receive, args=(name, results)) for name in namespace_names]
    _start(receivers)
    for _ in receivers:
        results.get()
    before = busy_seconds(*PACKETS)
    senders = [
        multiprocessing.Process(target=_send, args=(name, addresses[(number + 1) % HOSTS]))
        for number, name in enumerate(namespace_names)
    ]
    _start(senders)
    received = [transfer for transfer in (results.get() for _ in receivers) if transfer is not None]
    for process in (*senders, *receivers):
        process.join()
    busy = busy_seconds(*PACKETS) - before + _child_seconds() - child_seconds
    share = sum(transfer.size / transfer.seconds for transfer in received) / len(received) / rate
    return share, busy / sum(transfer.size for transfer in received)


def _child_seconds() -> float:
    """CPU time of this process's children that have ended [s]."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _start(processes: Sequence[multiprocessing.Process]) -> None:
    """Start all processes."""
    for process in processes:
        process.start()


def _receive(namespace: str, results: "multiprocessing.Queue[ReceivedData | None]") -> None:
    """Put None when the server listens, then receive one connection to its end and put its size and time."""
    end_with_parent()
    with namespaces.inside(namespace), socket.create_server(("", PORT)) as server:
        results.put(None)
        connection, _ = server.accept()
        buffer, size, start = bytearray(1 << 20), 0, 0.0
        while count := connection.recv_into(buffer):
            start, size = start or time.perf_counter(), size + count
        results.put(ReceivedData(size, time.perf_counter() - start))


def _send(namespace: str, address: str) -> None:
    """Send zeros to a host for `SECONDS`."""
    end_with_parent()
    with namespaces.inside(namespace), socket.create_connection((address, PORT)) as connection:
        data, end = bytes(SEND_BYTES), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            connection.sendall(data)


if __name__ == "__main__":
    run_as_program(main)
