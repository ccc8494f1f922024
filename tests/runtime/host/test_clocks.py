"""Clocks of ranks on several hosts, imitated by threads whose clocks are set wrong.

Time is imitated, too: it passes only while a message travels, so that a busy machine changes no answer.
"""

import threading
from queue import Queue

import pytest

from quadrille.runtime.host import clocks
from quadrille.runtime.host.clocks import clock_offset
from quadrille.runtime.host.world import LABORATORY

TRAVEL_S = 1e-5


class Hosts:
    """A world of ranks, each a thread; a host's clock is ahead of rank 0's by a number of seconds.

    `travel` holds the seconds of messages in their order; later messages take TRAVEL_S each.
    """

    def __init__(self, names, ahead, travel=()):
        self.now, self.travel = 0.0, iter(travel)
        self.names, self.ahead, self.offsets = names, ahead, {}
        self.here = threading.local()
        self.boxes = {(one, other): Queue() for one in range(len(names)) for other in range(len(names))}
        self.barrier, self.shared = threading.Barrier(len(names)), {}
        self.messages = 0

    def run(self):
        threads = [threading.Thread(target=self._rank, args=(rank,)) for rank in range(len(self.names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return [self.offsets[rank] for rank in range(len(self.names))]

    def _rank(self, rank):
        self.here.rank = rank
        self.offsets[rank] = clock_offset(self)

    def host_name(self):
        return self.names[self.here.rank]

    def perf_counter(self):
        return self.now + self.ahead[self.host_name()]

    def Get_rank(self):
        return self.here.rank

    def allgather(self, value):
        self.shared[self.here.rank] = value
        self.barrier.wait()
        values = [self.shared[rank] for rank in range(len(self.names))]
        self.barrier.wait()
        return values

    def bcast(self, value, root):
        return self.allgather(value)[root]

    def send(self, value, dest, tag):
        self.messages += 1
        self.now += next(self.travel, TRAVEL_S)
        self.boxes[self.here.rank, dest].put(value)

    def recv(self, source, tag):
        return self.boxes[source, self.here.rank].get(timeout=10)


@pytest.fixture
def hosts(monkeypatch):
    def make(names, ahead, travel=()):
        world = Hosts(names, ahead, travel)
        monkeypatch.setattr(clocks, "time", world)
        monkeypatch.setattr(clocks, "host_name", world.host_name)
        return world

    return make


def test_clocks_of_other_hosts_are_set_to_rank_0_s(hosts):
    ahead = {"one": 5.0, "two": 1000.25, "three": -7.5}
    names = ["one", "two", "one", "three", "two"]
    offsets = hosts(names, ahead).run()
    assert offsets[0] == offsets[2] == 0
    assert offsets[1] == offsets[4], "the ranks of one host share their clock"
    for rank, name in enumerate(names):
        assert ahead[name] + offsets[rank] == pytest.approx(ahead["one"], abs=TRAVEL_S)


def test_ranks_of_one_host_share_a_clock_and_exchange_nothing(hosts):
    world = hosts(["one", "one", "one"], {"one": 3.0})
    assert world.run() == [0, 0, 0]
    assert world.messages == 0


def test_hosts_of_a_laboratory_read_one_clock(hosts, monkeypatch):
    monkeypatch.setenv(LABORATORY, "lab")
    world = hosts(["lab-host0", "lab-host1"], {"lab-host0": 3.0, "lab-host1": 3.0})
    assert world.run() == [0, 0]
    assert world.messages == 0


def test_of_many_round_trips_the_shortest_counts(hosts):
    back_and_forth = [(TRAVEL_S, 2e-3), (TRAVEL_S, 3e-3), (TRAVEL_S, 1.5 * TRAVEL_S)] + [(2e-3, TRAVEL_S)] * 100
    world = hosts(["one", "two"], {"one": 0.0, "two": 100.0}, travel=[s for trip in back_and_forth for s in trip])
    assert world.run()[1] == pytest.approx(-100.0 - TRAVEL_S / 4, abs=1e-9)
