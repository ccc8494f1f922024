"""Machines from measured collectives: known numbers come back, and what the rows do not tell stays."""

import pytest

from quadrille.experiments.calibrate.fitted_collectives import halves, residuals
from quadrille.experiments.calibrate.machine_from_logs import AskedLogs, base_of_devices, machine_from_logs
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_file import load_machine
from tests.support.collective_logs import log_text
from tests.support.quadrille import called

NVLINK, CARD = "topology.nvlink_bandwidth_bytes_per_second", "topology.bandwidth_bytes_per_second"
CALL, SHARE = "device.collective_call_seconds", "device.collectives_between_share"


@pytest.fixture
def written(tmp_path):
    """A function that writes a log and returns its path."""

    def write(name, *words, **options):
        (tmp_path / name).write_text(log_text(*words, **options))
        return str(tmp_path / name)

    return write


def fit(paths, base="h100-superpod"):
    found = machine_from_logs(find_machine(base), AskedLogs(paths))
    return found, {number.path: number for number in found.numbers}


def test_bandwidths_and_the_time_of_a_call_come_back(written):
    settings = ["topology.nvlink_bandwidth=x0.6", "topology.bandwidth=x0.5", f"{CALL}=0.00003"]
    inside = written("inside.log", "h100-superpod", "all_gather", 8, 8, settings=settings)
    between = written("between.log", "h100-superpod", "all_gather", 16, 8, settings=settings)
    found, numbers = fit([inside, between])
    assert numbers[NVLINK].value == pytest.approx(0.6 * 450e9, rel=0.02)
    assert numbers[CARD].value == pytest.approx(25e9, rel=0.02)
    assert numbers[CALL].value == pytest.approx(30e-6, rel=0.05)
    before = residuals(find_machine("h100-superpod"), found.judged)
    assert residuals(found.machine, found.judged).high < 0.05 < before.median
    assert any(word.startswith("the share of the cards") for word in found.untold)


def test_messages_tell_the_cards_and_collectives_tell_their_share(written):
    settings = ["topology.bandwidth=x0.3", f"{SHARE}=0.8"]
    paths = [
        written(f"{kind}.log", "h100-superpod", kind, 16, 8, settings=settings, stride=8)
        for kind in ("send_receive", "all_to_all")
    ]
    _, numbers = fit(paths)
    assert numbers[CARD].value == pytest.approx(15e9, rel=0.02)
    assert numbers[SHARE].value == pytest.approx(0.8, rel=0.02)


def test_rows_inside_a_node_say_nothing_of_the_cards(written):
    path = written("inside.log", "h100-superpod", "all_reduce", 8, 8, sizes=(2**25, 2**26))
    found, numbers = fit([path])
    assert set(numbers) == {NVLINK}
    assert found.machine.topology["bandwidth_bytes_per_second"] == 50e9
    untold = [word.partition(" (")[0] for word in found.untold]
    assert untold[:2] == ["the bandwidth of network cards", "the time of a call"]


def test_times_that_no_bandwidth_gives_change_no_bandwidth(written):
    path = written("odd.log", "h100-node", "all_reduce", 8, 8, sizes=(2**25,), settings=[f"{CALL}=10"])
    found, numbers = fit([path], "h100-node")
    assert numbers == {}
    assert "no value gives their times" in found.untold[0]


def test_each_size_is_fitted_or_judges(written):
    found, _ = fit([written("inside.log", "h100-superpod", "all_reduce", 8, 8)])
    assert not {*found.fitted} & {*found.judged}
    calls = [*found.fitted, *found.judged]
    assert len(calls) == 9
    fitted, judged = halves(calls)
    assert max(call.question.bytes for call in fitted) == 2**28
    assert max(call.question.bytes for call in judged) == 2**27


def test_a_share_of_collectives_leaves_messages_alone():
    plain = find_machine("h100-superpod", (), 16)
    slow = find_machine("h100-superpod", ["topology.bandwidth=x0.2"], 16)
    shared = find_machine("h100-superpod", ["topology.bandwidth=x0.2", f"{SHARE}=0.5"], 16)

    def seconds(kind, machine):
        question = CollectiveQuestion(kind=kind, bytes=2**30, gpus=16, group=2, stride=8)
        return predict_collective(question, machine).seconds

    assert seconds("send_receive", shared) == seconds("send_receive", slow) > seconds("send_receive", plain)
    assert seconds("all_reduce", shared) == pytest.approx(2 * seconds("all_reduce", slow), rel=0.01)


def test_the_machine_file_goes_into_check_and_keeps_its_sources(written, tmp_path, capsys):
    log = written("inside.log", "h100-node", "all_gather", 8, 8, settings=["topology.nvlink_bandwidth=x0.5"])
    target = tmp_path / "machine.toml"
    ended = called(capsys, "import", "machine", log, "--into", str(target))
    assert ended.status == 0
    assert "not told: " in ended.out
    machine = load_machine(target)
    assert machine.name == "h100-node-measured"
    source = {source.quantity: source for source in machine.sources}["nvlink_bandwidth_bytes_per_second"]
    assert source.value == pytest.approx(225e9, rel=0.02)
    assert "inside.log" in source.source
    ended = called(capsys, "check", log, "--machine", str(target))
    assert ended.status == 0
    assert "from 1 MiB: as expected" in ended.out
    ended = called(capsys, "import", log, "--machine", str(target), "--into", str(target))
    assert (ended.status, ended.err) == (0, "")
    assert load_machine(target).name == "h100-node-measured"


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA H100 80GB HBM3", "h100-node"), ("A100-SXM4-40GB", "a100-node"), ("NVIDIA GB200", "gb200-nvl72")],
)
def test_the_base_is_a_node_with_the_gpus_of_the_log(device, name, written):
    assert base_of_devices([written("some.log", "h100-node", "all_reduce", 2, 8, device=device, sizes=(8,))]) == name


@pytest.mark.parametrize(
    ("device", "flags", "said"),
    [
        ("Tesla K80", [], "--machine NAME|FILE says"),
        ("NVIDIA H100", ["--gpus", "16", "--nodes", "3"], "16 ranks on 3 nodes"),
        ("NVIDIA H100", ["--machine", "h100"], "h100"),
        ("NVIDIA H100", ["--gpus", "8200", "--nodes", "1025"], "at most 8192"),
        ("NVIDIA H100", ["--into", "LOG"], "both name"),
    ],
)
def test_faults_are_one_line_and_status_2(device, flags, said, written, tmp_path, capsys):
    log = written("some.log", "h100-node", "all_reduce", 2, 8, device=device, sizes=(8,))
    target = str(tmp_path / "machine.toml")
    words = [log if flag == "LOG" else flag for flag in flags]
    ended = called(capsys, "import", "machine", log, *([] if "--into" in flags else ["--into", target]), *words)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert said in ended.err
    assert not (tmp_path / "machine.toml").exists()
