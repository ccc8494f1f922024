"""`quadrille flows` from files to answers, and the files that it refuses."""

import json

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.experiments.network.traffic_file import read_traffic
from quadrille.studies.simulator_speed.workloads import write_traffic
from quadrille.topologies.machines.machine_catalogue import machine
from tests.support.by_words import flows_predicted
from tests.support.work import python_calls

BENCH = MachineFlags(machine="bench-2to1")
HEADER = "source,destination,bytes,start_s\n"


@pytest.fixture
def traffic(tmp_path):
    """Writes a file and gives its path."""

    def write(text, name="traffic.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def answer_of(path, tmp_path, **flags):
    target = tmp_path / "answer.json"
    named = {name: flags.pop(name) for name in ("machine", "routing", "fail", "degrade", "settings") if name in flags}
    on = MachineFlags(**{"machine": "bench-2to1"} | named)
    flows_predicted(path, on, json=str(target), command=["quadrille", "flows"], **flags)
    return json.loads(target.read_text())


def test_two_flows_share_a_nic_by_hand(traffic, tmp_path):
    # Both from gpu 0, through its NIC of 50 GB/s, to GPUs of other leaves; 5 GB at 25 GB/s and 4 us of latency.
    found = answer_of(traffic(HEADER + "0,40,5000000000,0\n0,80,5000000000,0\n"), tmp_path, gpus=96)
    assert found["schema"] == "quadrille/flows/1"
    assert found["finish_s"] == pytest.approx([0.200004, 0.200004], rel=1e-12)
    assert found["makespan_s"] == pytest.approx(0.200004, rel=1e-12)
    assert found["machine"]["gpus"] == 96
    loads = {load["link"]: load for load in found["links"]}
    assert set(loads) == {
        "gpu:0>leaf:0", "leaf:0>spine:0", "spine:0>leaf:1", "spine:0>leaf:2", "leaf:1>gpu:40", "leaf:2>gpu:80",
    }  # fmt: skip
    nic = loads["gpu:0>leaf:0"]
    assert nic["bytes"] == 10_000_000_000
    assert nic["busy_s"] == pytest.approx(0.2, rel=1e-12)
    assert nic["utilisation"] == pytest.approx(0.2 / 0.200004, rel=1e-12)
    assert found["events"] == 2


def test_starts_and_columns_may_come_in_any_order(traffic, tmp_path):
    text = "start_s,bytes,destination,source\n1000000.5,5e9,40,0\n1000000.25,0,1,0\n"
    found = answer_of(traffic(text), tmp_path, gpus=64)
    assert found["finish_s"] == pytest.approx([1000000.600004, 1000000.250002], rel=1e-15)
    assert found["makespan_s"] == pytest.approx(0.350004, rel=1e-12)


def test_w3_from_its_file(tmp_path):
    write_traffic(tmp_path / "w3.csv", 1000, "random")
    found = answer_of(str(tmp_path / "w3.csv"), tmp_path, gpus=1024)
    assert found["makespan_s"] == pytest.approx(6.990658e-3, abs=1e-9)
    assert len(found["finish_s"]) == 1000
    assert found["events"] == 1002


def test_latency_weights_favour_the_short_route(traffic, tmp_path):
    # From gpu 0 to its own leaf (2 us) and to another (4 us): shares 2 : 1 of the NIC.
    text = HEADER + "0,8,3000000000,0\n0,40,3000000000,0\n"
    plain, weighted = (answer_of(traffic(text), tmp_path, gpus=64, weights=word) for word in ("none", "latency"))
    assert plain["finish_s"] == pytest.approx([0.12, 0.12], rel=1e-4)
    assert weighted["finish_s"] == pytest.approx([0.09, 0.12], rel=1e-4)
    assert (plain["weights"], weighted["weights"]) == ("none", "latency")


def test_faults_and_settings_change_the_links(traffic, tmp_path):
    text = traffic(HEADER + "0,40,5000000000,0\n")
    slow = answer_of(text, tmp_path, gpus=64, degrade=["gpu:0>leaf:0=0.5"])
    assert slow["finish_s"] == pytest.approx([0.2], rel=1e-4)
    with pytest.raises(InputError, match=r"no way|cut"):
        answer_of(text, tmp_path, gpus=64, fail=["leaf:0>spine:0"])


def test_the_machine_is_as_large_as_it_is_or_as_the_file_needs(traffic, tmp_path):
    text = traffic(HEADER + "0,40,8,0\n")
    assert answer_of(text, tmp_path)["machine"]["gpus"] == 41
    assert answer_of(text, tmp_path, gpus=64)["machine"]["gpus"] == 64
    assert answer_of(text, tmp_path, machine="perlmutter")["machine"]["gpus"] == machine("perlmutter").gpus


def test_routing_is_recorded_in_full_and_a_topology_is_enough(traffic, tmp_path):
    star = "star:hosts=4,bandwidth=1e9,latency=1e-6"
    found = answer_of(traffic(HEADER + "0,1,1000000,0\n"), tmp_path, machine=star, routing="ecmp")
    assert found["routing"] == "ecmp:0"
    assert found["machine"]["name"] == star
    assert found["finish_s"] == pytest.approx([1e-3 + 2e-6], rel=1e-12)
    with pytest.raises(InputError, match=r"--gpus 4: star:.* says itself how many GPUs there are"):
        answer_of(traffic(HEADER + "0,1,8,0\n"), tmp_path, machine=star, gpus=4)


def test_a_slow_gpu_is_refused(traffic):
    with pytest.raises(InputError, match="flows compute nothing"):
        flows_predicted(traffic(HEADER + "0,1,8,0\n"), MachineFlags(machine="bench-2to1", slow=["gpu:1=0.5"]))


def test_a_person_gets_a_table(traffic, capsys):
    flows_predicted(traffic(HEADER + "0,40,5000000000,0\n"), BENCH)
    out = capsys.readouterr().out
    assert "1 flows on bench-2to1" in out
    assert "0 > 40" in out
    assert "gpu:0>leaf:0" in out


def test_a_hundred_thousand_rows_are_read_at_once(tmp_path):
    write_traffic(tmp_path / "long.csv", 100_000, "equal")
    rows = read_traffic(str(tmp_path / "long.csv"))
    assert len(rows.sizes) == 100_000
    assert rows.sizes.dtype == np.float64
    assert python_calls(lambda: read_traffic(str(tmp_path / "long.csv"))) < 10_000, "rows are read one by one"


WRONG = {
    "": "line 1: is empty; a header with the columns source,destination,bytes,start_s is needed",
    "0,1,8,0\n": "line 1: '0,1,8,0' is no header",
    "source,destination,bytes,start_s,colour\n": "line 1: column 'colour' is unknown; accepted are source,",
    "source,destination,bytes\n0,1,8\n": "line 1: column 'start_s' is missing",
    "source,source,destination,bytes,start_s\n": "line 1: column 'source' stands twice",
    HEADER: "has a header and no rows",
    HEADER + "0,1,8,0\n\n0,1,8\n": "line 4: has 3 columns; 4 are needed, source,destination,bytes,start_s; is the file",
    HEADER + "0,1,8\n0,1,8,0\n": "line 2: has 3 columns; 4 are needed, source,destination,bytes,start_s$",
    HEADER + "0,1,8,0,7\n": "line 2: has 5 columns",
    HEADER + "0,1,8,0\n0,x,8,0\n": "line 3: destination 'x': a whole number from 0 is accepted",
    HEADER + "0.5,1,8,0\n": "line 2: source '0.5': a whole number",
    HEADER + "-1,1,8,0\n": "line 2: source '-1': a whole number from 0",
    HEADER + "0,1,-8,0\n": "line 2: bytes '-8': a number of bytes from 0 to 1e.21 is accepted",
    HEADER + "0,1,nan,0\n": "line 2: bytes 'nan'",
    HEADER + "0,1,1e999,0\n": "line 2: bytes '1e999': a number of bytes",
    HEADER + "0,1,8,inf\n": "line 2: start_s 'inf': a number of seconds from 0 to 1e.12",
    HEADER + "0,1,8,1e308\n": "line 2: start_s '1e308': a number of seconds from 0 to 1e.12",
    HEADER + "0,1,8,\n": "line 2: start_s '': a number",
    HEADER + "0,1,8,0\n5,5,8,0\n": "line 3: source 5 is the destination too",
    HEADER + "0,1,8,0\n5,64,8,0\n": "line 3: destination 64 is not there; accepted are gpu:0 to gpu:63",
    HEADER + "99,1,8,0\n": "line 2: source 99 is not there",
    HEADER + "0,40,1e308,0\n0,41,1e308,0\n": "line 2: bytes '1e308': a number of bytes",
    HEADER + '"0",1,8,0\n': "line 2: source '\"0\"': a whole number",
    HEADER + "0,1,8,0 # note\n": "line 2: start_s '0 # note'",
    HEADER + "0,1,1_0,0\n": "line 2: bytes '1_0'",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_a_wrong_file_is_refused_with_its_line(traffic, tmp_path, text, message):
    target = tmp_path / "answer.json"
    with pytest.raises(InputError, match=message.replace("|", r"\|")) as refused:
        flows_predicted(traffic(text), BENCH, gpus=64, json=str(target))
    assert "\n" not in str(refused.value)
    assert "traffic.csv" in str(refused.value)
    assert not target.exists()


def test_windows_lines_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "windows.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + "0,1,8,0.5\n1,2,16,0\n").replace("\n", "\r\n").encode())
    rows = read_traffic(str(path))
    assert rows.sizes.tolist() == [8, 16]
    assert rows.starts.tolist() == [0.5, 0]


def test_wrong_flags_are_refused(traffic, tmp_path):
    text = traffic(HEADER + "0,1,8,0\n")
    with pytest.raises(InputError, match="routing 'best'"):
        flows_predicted(text, MachineFlags(machine="bench-2to1", routing="best"))
    with pytest.raises(InputError, match="name"):
        flows_predicted(text, BENCH, json=text)
    with pytest.raises(InputError, match=r"--json .* does not exist"):
        flows_predicted(text, BENCH, json=str(tmp_path / "nowhere" / "answer.json"))
    with pytest.raises(InputError, match="cannot be read"):
        flows_predicted(str(tmp_path / "none.csv"), BENCH)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text in UTF-8"):
        flows_predicted(str(tmp_path / "binary.csv"), BENCH)
