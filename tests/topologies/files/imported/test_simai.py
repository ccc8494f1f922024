"""SimAI's topology files: the nodes and cables of the text, and faults by their lines."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.import_topology import import_topology
from tests.support.fabric_files import SIMAI


def imported(tmp_path, text):
    (tmp_path / "file").write_text(text)
    return import_topology([str(tmp_path / "file")])


def test_a_file_has_its_gpus_switches_and_cables(tmp_path):
    net, remarks = imported(tmp_path, SIMAI)
    links = [net.link(number) for number in range(len(net.bandwidths))]
    by_name = {link.name: (link.bandwidth, link.latency) for link in links}
    assert (net.endpoints, net.per_node, len(links)) == (("gpu", 4), 2, 24)
    assert by_name["gpu:3>nvswitch:1"] == pytest.approx((360e9, 25e-9))
    assert by_name["gpu:3>switch:1"] == pytest.approx((50e9, 0.5e-6))
    assert sum(link.bandwidth for link in links if link.name.startswith("switch:0>switch:2")) == pytest.approx(50e9)
    assert remarks == (f"{tmp_path / 'file'}: the kind of the GPU (H100) and rates of errors",)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("9 2 2 3 12", "9 3 2 3 12", "line 1: 4 GPUs in servers of 3"),
        ("9 2 2 3 12", "9 2 2 3 13", "line 1: 13 cables: the file has 12"),
        ("4 5 6 7 8", "4 5 6 7 7", "line 2: 5 different numbers below 9"),
        ("4 5 6 7 8", "4 5 6 07 7", "line 2: 5 different numbers below 9"),
        ("4 5 6 7 8", "4 5 6 7", "line 2: 4 words"),
        ("0 4 2880Gbps", "0 0 2880Gbps", "line 3: '0 0': two different numbers below 9"),
        ("0 4 2880Gbps", "0 4 fast", "line 3: 'fast 0.000025ms'"),
        ("0 4 2880Gbps 0.000025ms 0", "0 4 2880Gbps", "line 3: 3 columns: a cable has 5"),
        ("9 2 2 3 12", "999999999 2 2 3 12", "too many|at most"),
    ],
)
def test_a_fault_is_named_by_its_line(old, new, said, tmp_path):
    with pytest.raises(InputError, match=said):
        imported(tmp_path, SIMAI.replace(old, new, 1))


def test_a_blank_first_line_is_named(tmp_path):
    (tmp_path / "file").write_text("\n" + SIMAI)
    with pytest.raises(InputError, match="line 1: '': five whole numbers"):
        import_topology([str(tmp_path / "file")], kind="simai")
