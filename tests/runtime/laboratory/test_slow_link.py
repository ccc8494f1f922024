"""A link of a real laboratory that is slower than is said of it is found by rounds, and no other is."""

import json
import os

import pytest

from quadrille.experiments.calibrate.link_saturation import link_saturation
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import launch_in_laboratory
from quadrille.runtime.laboratory import laboratory, namespaces, queues
from quadrille.runtime.laboratory.namespace_plan import HOST_INTERFACE
from quadrille.runtime.laboratory.register import MACHINE_REGISTER
from quadrille.runtime.laboratory.token_buckets import burst_bytes
from quadrille.runtime.measuring.measured_points import FlowPoint
from quadrille.topologies.build import build
from quadrille.topologies.routes.routing import Routing
from tests.support.laboratories import UNAVAILABLE_REASON

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(bool(UNAVAILABLE_REASON), reason=UNAVAILABLE_REASON or "laboratories can be made"),
]
HOSTS, RATE = 3, 12.5e6
SAID = ("star", {"hosts": HOSTS, "bandwidth": RATE, "latency": 0.0})
PROGRAM = """
import json, sys
from dataclasses import astuple
from functools import partial
from pathlib import Path
from quadrille.runtime.host import world
from quadrille.runtime.carriers.message_options import default_message_options
from quadrille.runtime.measuring.link_speed import measure_link_speed
from quadrille.experiments.calibrate.network_benchmarks import measure_all_pairs_flows
from quadrille.experiments.calibrate.network_sections import links_agree
from quadrille.topologies.routes.routing import Routing
ranks, given = world.world(), json.loads(sys.argv[2])
agree = partial(links_agree, given, Routing())
message_options = default_message_options(world.hosts(ranks)[0])
found = measure_all_pairs_flows(ranks, ranks.size, measure_link_speed(ranks), message_options, agree)
if ranks.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps([astuple(one) for one in found]))
"""


def limit(entry, host, rate):
    """Change what a host's link lets through, under whoever uses it."""
    with namespaces.socket_of(entry.namespaces[host]) as kernel:
        (index,) = kernel.link_lookup(ifname=HOST_INTERFACE)
        queues.limit(kernel, index, rate, burst_bytes(rate))


def shares(entry, path):
    """Of its rate what each link had, relative to most, by rounds of ranks in a laboratory, as `calibrate` has them."""
    words = [str(path), json.dumps(SAID)]
    assert launch_in_laboratory(entry, HOSTS, words, program=("-c", PROGRAM)) == 0
    flows = [FlowPoint(*row) for row in json.loads(path.read_text())]
    net = build(*SAID)
    filled = link_saturation(net, Routing(), flows, 0.95)
    assert filled.unfilled == ()
    return dict(zip(net.link_names(range(net.link_count)), filled.relative.tolist(), strict=True))


def test_a_link_that_was_halved_under_a_laboratory_is_found_and_no_other(tmp_path):
    wanted = parse_laboratory(f"star:hosts={HOSTS}", "100mbit", name=f"slow{os.getpid()}")
    with laboratory.standing(wanted) as entry:
        assert set(shares(entry, tmp_path / "as-said.json").values()) == {1.0}
        limit(entry, "host:1", RATE / 2)
        found = shares(entry, tmp_path / "halved.json")
    assert found.pop("host:1>switch:0") == pytest.approx(0.5, rel=0.05)
    assert set(found.values()) == {1.0}
    assert MACHINE_REGISTER.read(wanted.name) is None
