from collections import Counter
from itertools import combinations, pairwise

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.cluster import gpu_cluster
from quadrille.topologies.nodes.amd_nodes import FRONTIER, XGMI_LINKS
from quadrille.topologies.nodes.gpu_node import Cable, nvswitch_node, paths_inside_node
from quadrille.topologies.nodes.node_kinds import NODE_KINDS
from quadrille.topologies.nodes.nvlink_mesh_nodes import CUBE_MESH, DGX_1V, LONGHORN, PERLMUTTER, SUMMIT
from quadrille.topologies.quantity import Quantity
from tests.support.work import python_calls

NUMBERS = {"gpu_bandwidth": 450e9, "gpu_latency": 1e-6, "nic_bandwidth": 50e9, "nic_latency": 2e-6}
NVSWITCH = nvswitch_node(6, 3, **NUMBERS)
KINDS = [*NODE_KINDS.values(), NVSWITCH]


def path(kind, source, target):
    return paths_inside_node(kind.cables, source)[target]


def narrowest(kind, hops):
    widths = {frozenset((c.first, c.second)): c.bandwidth for c in kind.cables}
    return min(widths[frozenset(hop)] for hop in pairwise(hops))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


def test_every_gpu_reaches_every_other_and_its_nic(kind):
    for one, other in combinations(range(kind.gpus), 2):
        assert path(kind, f"gpu:{one}", f"gpu:{other}")
    for gpu in range(kind.gpus):
        assert path(kind, f"gpu:{gpu}", f"nic:{kind.nic(gpu)}")


def test_every_nic_serves_as_many_gpus(kind):
    assert set(Counter(map(kind.nic, range(kind.gpus))).values()) == {kind.gpus // kind.nics}


def test_gpus_never_meet_through_a_nic(kind):
    for one, other in combinations(range(kind.gpus), 2):
        assert not any(part.startswith("nic") for part in path(kind, f"gpu:{one}", f"gpu:{other}"))


def test_all_ends_of_cables_are_parts_of_the_node(kind):
    assert kind.cables
    for cable in kind.cables:
        for end in (cable.first, cable.second):
            name, _, index = end.partition(":")
            assert int(index) < kind.parts[name]


def test_what_a_gpu_reaches_its_nic_by_never_limits_the_nic(kind):
    for gpu in range(kind.gpus):
        assert narrowest(kind, path(kind, f"gpu:{gpu}", f"nic:{kind.nic(gpu)}")) >= kind.nic_bandwidth


@pytest.mark.parametrize("name", NODE_KINDS)
def test_every_number_of_a_kind_has_a_source(name):
    kind = NODE_KINDS[name]
    assert all(isinstance(one, Quantity) and len(one.source) > 20 for one in (*kind.quantities, *kind.gpu.quantities))
    assert {"gpus_per_node", "nics_per_node"} <= {one.quantity for one in kind.quantities}


@pytest.mark.parametrize("name", NODE_KINDS)
def test_every_bandwidth_of_a_kind_is_listed(name):
    kind = NODE_KINDS[name]
    text = " ".join(f"{one.value}" for one in kind.quantities if "bandwidth" in one.quantity)
    listed = {float(word) for word in text.split() if word != "or"}
    assert {cable.bandwidth for cable in kind.cables} | {kind.nic_bandwidth} == listed


@pytest.mark.parametrize("name", NODE_KINDS)
def test_any_kind_of_node_makes_a_cluster(name):
    kind = NODE_KINDS[name]
    net = gpu_cluster(3, name)
    assert {part: count for part, (_, count) in net.kinds.items() if part != "switch"} == {
        part: 3 * count for part, count in kind.parts.items()
    }
    assert net.link_count == 3 * 2 * (len(kind.cables) + kind.network_ports)


# NVLinks of a GPU, 25e9 B/s each (50e9 on Blackwell): V100 six, A100 twelve, H100 and B200 eighteen.
ALL_LINKS = {
    "dgx-1v": 6 * 25e9,
    "jean-zay-v100": 6 * 25e9,
    "abci-v": 6 * 25e9,
    "perlmutter": 12 * 25e9,
    "dgx-a100": 12 * 25e9,
    "hgx-h100": 18 * 25e9,
    "gh200-4": 18 * 25e9,
    "hgx-b200": 18 * 50e9,
    "mi300x": 7 * 64e9,
}


@pytest.mark.parametrize("name", ALL_LINKS)
def test_each_gpu_uses_all_its_links(name):
    kind = NODE_KINDS[name]
    for gpu in range(kind.gpus):
        assert (
            sum(c.bandwidth for c in kind.cables if c.joins_gpus and f"gpu:{gpu}" in (c.first, c.second))
            == ALL_LINKS[name]
        )
    assert kind.nvlink_bandwidth == ALL_LINKS[name]


def test_perlmutter_gpus_are_joined_pairwise():
    assert all(len(path(PERLMUTTER, f"gpu:{a}", f"gpu:{b}")) == 2 for a, b in combinations(range(4), 2))


def test_every_gcd_of_frontier_uses_its_eight_ports():
    # GPU links, one to the host, and the NIC's at the odd ones.
    for gcd in range(8):
        links = sum(count for pair, count in XGMI_LINKS.items() if gcd in pair)
        assert links + 1 + gcd % 2 == 8


def test_gcds_that_are_not_joined_go_through_the_widest_neighbour():
    assert path(FRONTIER, "gpu:0", "gpu:4") == ("gpu:0", "gpu:2", "gpu:4")
    assert path(FRONTIER, "gpu:2", "gpu:6") in {("gpu:2", "gpu:4", "gpu:6"), ("gpu:2", "gpu:0", "gpu:6")}
    assert path(FRONTIER, "gpu:0", "gpu:7") == ("gpu:0", "gpu:6", "gpu:7")


def test_a_dgx_1v_is_two_quads_joined_corner_by_corner():
    assert sum(CUBE_MESH.values()) == 8 * 6 // 2
    crossing = {pair for pair in CUBE_MESH if (pair[0] < 4) != (pair[1] < 4)}
    assert crossing == {(gpu, gpu + 4) for gpu in range(4)}
    assert path(DGX_1V, "gpu:0", "nic:0") == ("gpu:0", "pcie:0", "nic:0")


def test_the_triples_of_summit_meet_over_the_processors():
    assert len(path(SUMMIT, "gpu:0", "gpu:2")) == 2
    assert path(SUMMIT, "gpu:0", "gpu:3") == ("gpu:0", "cpu:0", "cpu:1", "gpu:3")
    assert path(SUMMIT, "gpu:5", "nic:1") == ("gpu:5", "cpu:1", "nic:1")


def test_both_pairs_of_longhorn_reach_the_one_nic_from_their_own_processor():
    assert path(LONGHORN, "gpu:0", "nic:0") == ("gpu:0", "cpu:0", "nic:0")
    assert path(LONGHORN, "gpu:3", "nic:0") == ("gpu:3", "cpu:1", "nic:0")


def test_gpus_that_share_a_nic_meet_over_the_nvswitch():
    assert path(NVSWITCH, "gpu:0", "gpu:1") == ("gpu:0", "nvswitch:0", "gpu:1")


def test_joined_nics_are_one_that_nothing_inside_the_node_limits(kind):
    joined = kind.joined()
    assert joined.nics == 1
    assert joined.injection_bandwidth == kind.injection_bandwidth
    for gpu in range(kind.gpus):
        *inside, _ = way = path(joined, f"gpu:{gpu}", "nic:0")
        last = Cable(*way[-2:], 0, 0)
        assert narrowest(joined, (last.first, last.second)) >= joined.nic_bandwidth
        assert inside == list(path(kind, f"gpu:{gpu}", f"nic:{kind.nic(gpu)}"))[:-1]


def test_other_rates_between_gpus_leave_the_nics_alone():
    faster = PERLMUTTER.with_rates(None, None, 600e9)
    assert {c.bandwidth for c in faster.cables if c.joins_gpus} == {200e9}
    assert {c.bandwidth for c in faster.cables if not c.joins_gpus} == {31.5e9}
    assert faster.nvlink_bandwidth == 600e9


def test_more_nics_than_gpus_are_refused():
    with pytest.raises(InputError, match="nics_per_node=3 must be from 0 to gpus_per_node=2"):
        nvswitch_node(2, 3, **NUMBERS)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_cable_of_a_node_that_cannot_be_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"gpu-cluster: {name}=-1"):
        nvswitch_node(2, 1, **NUMBERS | {name: -1})


def test_the_work_for_a_node_grows_no_faster_than_its_pairs_of_gpus():
    assert gpu_cluster(2, gpus_per_node=72, nics_per_node=72, **NUMBERS).endpoint_count == 144
    calls = [
        python_calls(lambda size=size: gpu_cluster(2, gpus_per_node=size, nics_per_node=size, **NUMBERS))
        for size in (36, 72)
    ]
    assert calls[1] < 5 * calls[0]  # twice the GPUs: four times the pairs, and eight times the triples


def test_more_gpus_in_a_node_than_any_switch_joins_are_refused():
    with pytest.raises(InputError, match="gpus_per_node=577 must be from 1 to 576"):
        gpu_cluster(1, gpus_per_node=577, nics_per_node=1, **NUMBERS)
