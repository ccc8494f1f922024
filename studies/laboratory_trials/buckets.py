"""Which token bucket keeps a rate, and at what cost to the cores: the trial behind `token_buckets.py`.

    python -m quadrille.studies.laboratory_trials.buckets > studies/laboratory_trials/results/buckets.csv

Four hosts on one switch, each sending to the next over a plain TCP connection for a second,
at several rates and with buckets of several sizes.  As root.  What cores spend is that of
the processes that send and receive, and of interrupts.
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
from quadrille.runtime.laboratory import laboratory, namespaces, queues
from quadrille.runtime.laboratory.namespace_plan import NamespacePlan
from quadrille.runtime.laboratory.register import LaboratoryRecord
from quadrille.studies.laboratory_trials.circumstances import busy_seconds, head_line

RATES = ("20mbit", "200mbit", "1gbit")
BUCKETS = (4_000, 16_384, 25_000, 65_536, 70_000, 80_000, 131_072)
PACKETS = ("irq", "softirq")
"""Kinds of work of the cores that carry packets, whatever else runs."""
HOSTS, PORT, SECONDS, PIECE_BYTES = 4, 5000, 1.0, 1 << 16


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes that came to a host, and from the first to the last of them [s]."""

    size: int
    seconds: float


def main() -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    print(head_line())
    table.writerow(["bytes_per_second", "bucket_bytes", "share_of_rate", "core_seconds_per_byte"])
    for rate in RATES:
        wanted = parse_laboratory(f"star:hosts={HOSTS}", rate, name=f"buckets{os.getpid()}")
        with laboratory.standing(wanted) as entry:
            speed = min(entry.rates.values())
            for bucket in BUCKETS:
                _set_buckets(wanted.plan, entry, bucket)
                share, cost = _tried(entry, speed)
                table.writerow([f"{speed:.0f}", bucket, f"{share:.3f}", f"{cost:.2e}"])
                sys.stdout.flush()


def _set_buckets(plan: NamespacePlan, entry: LaboratoryRecord, bucket: int) -> None:
    for port in (end for cable in plan.cables for end in (cable.near, cable.far)):
        with namespaces.socket_of(entry.namespaces[port.place]) as kernel:
            (index,) = kernel.link_lookup(ifname=port.interface)
            queues.limit(kernel, index, port.rate, bucket)


def _tried(entry: LaboratoryRecord, rate: float) -> tuple[float, float]:
    """Mean share of the rate that hosts receive, and core seconds per byte, while all hosts send at the same time."""
    places, addresses = [entry.namespaces[host] for host in entry.addresses], list(entry.addresses.values())
    spent = _children()
    told: multiprocessing.Queue[Received | None] = multiprocessing.Queue()
    receivers = [multiprocessing.Process(target=_receive, args=(place, told)) for place in places]
    _start(receivers)
    for _ in receivers:
        told.get()
    before = busy_seconds(*PACKETS)
    senders = [
        multiprocessing.Process(target=_send, args=(place, addresses[(number + 1) % HOSTS]))
        for number, place in enumerate(places)
    ]
    _start(senders)
    received = [transfer for transfer in (told.get() for _ in receivers) if transfer is not None]
    for process in (*senders, *receivers):
        process.join()
    busy = busy_seconds(*PACKETS) - before + _children() - spent
    share = sum(transfer.size / transfer.seconds for transfer in received) / len(received) / rate
    return share, busy / sum(transfer.size for transfer in received)


def _children() -> float:
    """Seconds of a core that processes took which this one has started and which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _start(processes: Sequence[multiprocessing.Process]) -> None:
    for process in processes:
        process.start()


def _receive(place: str, told: "multiprocessing.Queue[Received | None]") -> None:
    with namespaces.inside(place), socket.create_server(("", PORT)) as server:
        told.put(None)
        connection, _ = server.accept()
        room, size, start = bytearray(1 << 20), 0, 0.0
        while count := connection.recv_into(room):
            start, size = start or time.perf_counter(), size + count
        told.put(Received(size, time.perf_counter() - start))


def _send(place: str, address: str) -> None:
    with namespaces.inside(place), socket.create_connection((address, PORT)) as connection:
        piece, end = bytes(PIECE_BYTES), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            connection.sendall(piece)


if __name__ == "__main__":
    run_as_program(main)
