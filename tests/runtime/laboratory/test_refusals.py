"""What a kernel refuses is named, without any kernel that does."""

from contextlib import nullcontext

import pytest
from pyroute2 import NetlinkError

from quadrille.algorithms.errors import RunError
from quadrille.experiments.laboratory.topology_plan import namespace_plan, scaled_network
from quadrille.runtime.laboratory import namespaces
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.routes.routing import parse_routing


class Kernel:
    """One that refuses a kind of thing."""

    def __init__(self, refused):
        self._refused = refused

    def link_lookup(self, ifname):
        return (1,)

    def close(self):
        pass

    def __getattr__(self, verb):
        def asked(action="", *words, **_more):
            if (verb, action, *words[:1])[: len(self._refused)] == self._refused != ():
                raise NetlinkError(95, "Operation not supported")

        return asked


@pytest.fixture
def build_refused(tmp_path, monkeypatch):
    """Builds a topology with a kernel that refuses something."""

    def built(refused, text, routing="shortest"):
        monkeypatch.setattr(namespaces.netns, "create", lambda name: None)
        monkeypatch.setattr(namespaces, "inside", nullcontext)
        monkeypatch.setattr(namespaces, "socket_of", lambda name: Kernel(refused))
        family, arguments = parse_topology(text)
        net = scaled_network(build(family, {"bandwidth": 1.0, "latency": 0.0} | arguments), 25e6)
        made = namespace_plan(net, parse_routing(routing))
        namespaces.build(made, dict.fromkeys(made.places, "x"), tmp_path)

    for folder in ("all", "default"):
        (tmp_path / "conf" / folder).mkdir(parents=True)
    return built


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (("link", "add"), "the cable from host:0 to .*: Operation not supported .cables are made by its module veth."),
        (("tc", "replace", "tbf"), "the token bucket of 25 MB/s from host:0 to leaf:0: .* by its module sch_tbf"),
        (("tc", "add", "htb"), "the queues from host:0 to leaf:0: .* by its modules sch_htb and cls_u32"),
        (("tc", "add-filter", "u32"), "the queues from host:0 to leaf:0: .* by its modules sch_htb and cls_u32"),
        (("rule", "add"), r"the rule at leaf:\d for packets of host:\d: .* by its policy routing, CONFIG_"),
        (("route", "add"), "the route from host:0 to host:1: Operation not supported$"),
        (("addr", "add"), "the port of host:0 to leaf:0: Operation not supported$"),
        (("link", "set"), r"a part of laboratory 'leaf.*: Operation not supported$"),
    ],
)
def test_what_the_kernel_refuses_is_named_with_what_it_needs(build_refused, refused, said):
    with pytest.raises(RunError, match=f"^the kernel refused {said}"):
        build_refused(refused, "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2", "ecmp:1")


def test_a_setting_that_cannot_be_written_is_named(build_refused, tmp_path):
    (tmp_path / "conf" / "all").rmdir()
    with pytest.raises(RunError, match=r"refused net\.ipv4\.conf\.all\.rp_filter = 0 at host:0: No such file"):
        build_refused((), "star:hosts=2")


def test_packets_may_come_by_any_path_before_a_place_has_a_port(build_refused, tmp_path):
    with pytest.raises(RunError, match="the cable"):
        build_refused(("link", "add"), "star:hosts=2")
    assert {path.read_text() for path in tmp_path.rglob("rp_filter")} == {"0"}
    assert (tmp_path / "ip_forward").read_text() == "1"
