"""Links that are slower than is said of them, found in rounds whose flows are given."""

import pytest

from quadrille.experiments.calibrate.link_saturation import link_saturation, rate_of_first_pair
from quadrille.runtime.measuring.measured_points import FlowPoint
from quadrille.topologies.build import build
from quadrille.topologies.routes.routing import Routing
from tests.support.all_pairs_rounds import PAYLOAD, rounds, slower

STAR = build("star", {"hosts": 4, "bandwidth": 100.0, "latency": 0.0})
TWO_TO_ONE = {"leaves": 3, "spines": 1, "hosts_per_leaf": 2, "bandwidth": 100.0, "latency": 0.0}


def deviating(net, flows, share=PAYLOAD):
    filled = link_saturation(net, Routing(), flows, share)
    names = net.link_names(range(net.link_count))
    return {name: float(part) for name, part in zip(names, filled.relative, strict=True) if part != 1}


@pytest.mark.parametrize("links", [{"host:1>switch:0": 0.5}, {"host:1-switch:0": 0.5}, {"switch:0>host:2": 0.8}])
def test_a_slow_link_of_a_star_is_found_and_no_other(links):
    expected = {
        STAR.link_names([number])[0]: part for name, part in links.items() for number in STAR.link_numbers(name)
    }
    assert deviating(STAR, rounds(slower(STAR, links))) == pytest.approx(expected)


def test_links_that_are_as_said_agree_whatever_headers_leave_of_all():
    filled = link_saturation(STAR, Routing(), rounds(STAR, noise=0.03), PAYLOAD)
    assert filled.agree and filled.unfilled == ()


def test_slow_uplinks_of_a_leaf_spine_are_found_though_the_links_of_hosts_are_not_at_fault():
    net = build("leaf-spine", TWO_TO_ONE | {"uplink_bandwidth": 100.0})
    found = deviating(net, rounds(slower(net, {"leaf:1-spine:0": 0.5})))
    assert found == pytest.approx({"leaf:1>spine:0": 0.5, "spine:0>leaf:1": 0.5})


def test_a_wide_uplink_that_is_far_slower_than_said_is_found_though_no_round_should_fill_it():
    net = build("leaf-spine", TWO_TO_ONE | {"uplink_bandwidth": 400.0})
    found = deviating(net, rounds(slower(net, {"leaf:1>spine:0": 0.25})))
    assert found == pytest.approx({"leaf:1>spine:0": 0.25})


def test_a_link_that_no_round_fills_is_named_and_has_the_share_of_most():
    net = build("leaf-spine", TWO_TO_ONE | {"uplink_bandwidth": 400.0})
    filled = link_saturation(net, Routing(), rounds(slower(net, {"host:0>leaf:0": 0.5})), PAYLOAD)
    names = net.link_names(filled.unfilled)
    assert set(names) == {name for name in net.link_names(range(net.link_count)) if "spine" in name}
    assert set(filled.relative[list(filled.unfilled)]) == {1.0}
    assert not filled.agree


def test_where_cores_limit_all_links_nothing_is_known_of_any():
    flows = rounds(slower(STAR, {"host:1>switch:0": 0.5}))
    assert deviating(STAR, flows, share=PAYLOAD / 0.8) == {}
    assert len(link_saturation(STAR, Routing(), flows, PAYLOAD / 0.8).unfilled) == STAR.link_count


def test_a_flow_that_brought_nothing_fills_no_link():
    flows = [FlowPoint(1, host, (host + 1) % 4, 0.0) for host in range(4)]
    filled = link_saturation(STAR, Routing(), flows, PAYLOAD)
    assert filled.agree and len(filled.unfilled) == STAR.link_count


def test_the_path_between_two_hosts_is_as_fast_as_its_slowest_measured_link():
    filled = link_saturation(STAR, Routing(), rounds(slower(STAR, {"switch:0>host:1": 0.5})), PAYLOAD)
    assert (rate_of_first_pair(STAR, Routing()), rate_of_first_pair(STAR, Routing(), filled)) == (
        100.0,
        pytest.approx(50.0),
    )
