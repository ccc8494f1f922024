"""Laboratories as Linux makes them: packets cross, rates hold, ranks run, and nothing is left whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.record import load_record
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import launch_in_laboratory
from quadrille.experiments.laboratory.topology_plan import namespace_plan, scaled_network
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.runtime.laboratory import laboratory, namespaces
from quadrille.runtime.laboratory.laboratory import Laboratory
from quadrille.runtime.laboratory.namespace_plan import is_of_cable
from quadrille.runtime.laboratory.register import MACHINE_REGISTER, LaboratoryRecord, Register
from quadrille.runtime.laboratory.token_buckets import WHOLE_PACKET, burst_bytes
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.machines.machine_file import load_machine
from quadrille.topologies.routes.routing import parse_routing
from tests.support.laboratories import UNAVAILABLE_REASON, environment
from tests.support.speed import needs_quiet

QUADRILLE = (sys.executable, "-P", "-m", "quadrille")


pytestmark = pytest.mark.skipif(bool(UNAVAILABLE_REASON), reason=UNAVAILABLE_REASON or "laboratories can be made")


@pytest.fixture
def register(tmp_path):
    """A register of the test's own, so that laboratories of others are not seen, and none of its own is left."""
    own = Register(tmp_path / "register")
    yield own
    for entry in own.every():
        laboratory.down(entry.name, own)
    assert not list(namespaces.FOLDER.glob(f"quadrille-*{os.getpid()}-*"))


def a_laboratory(text="star:hosts=3", rate=25e6, name=None, routing="shortest"):
    family, arguments = parse_topology(text)
    net = scaled_network(build(family, {"bandwidth": 1.0, "latency": 0.0} | arguments), rate)
    rates = dict(zip(net.link_names(range(net.link_count)), net.bandwidths.tolist(), strict=True))
    return Laboratory(name or f"t{os.getpid()}", text, namespace_plan(net, parse_routing(routing)), rates)


def carried(entry, source, target, size):
    """Seconds from the first byte to the last of so many bytes by TCP from one host to another."""
    with namespaces.inside(entry.namespaces[target]):
        listening = socket.create_server((entry.addresses[target], 0))
    with namespaces.inside(entry.namespaces[source]):
        sender = socket.create_connection(listening.getsockname()[:2], timeout=20)
    receiver, _ = listening.accept()
    begun = time.monotonic()
    thread = threading.Thread(target=lambda: (sender.sendall(bytes(size)), sender.close()))
    thread.start()
    left = size
    while left:
        left -= len(receiver.recv(1 << 20))
    seconds = time.monotonic() - begun
    thread.join()
    listening.close()
    receiver.close()
    return seconds


@pytest.mark.parametrize(
    "text",
    ["star:hosts=3", "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2", "tree:down=2x2x2,up=1x1x1", "ring:hosts=4"],
)
def test_every_host_reaches_every_other(text, register):
    with laboratory.standing(a_laboratory(text), register) as entry:
        for source in entry.addresses:
            for target in entry.addresses:
                if source != target:
                    carried(entry, source, target, 1000)


def test_hosts_share_links_equally_on_every_machine(register):
    with laboratory.standing(a_laboratory("star:hosts=2"), register) as entry:
        assert list(entry.addresses) == ["host:0", "host:1"]
        for host in entry.addresses:
            with namespaces.inside(entry.namespaces[host]):
                assert Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip() == "reno"


def test_packets_come_back_by_other_links_also_where_the_machine_would_drop_them(monkeypatch, register):
    create, written = namespaces.netns.create, ("all", "default")

    def strict(name):
        """A namespace as machines give it that look at the way back of every packet."""
        create(name)
        with namespaces.inside(name):
            for word in written:
                Path(f"/proc/sys/net/ipv4/conf/{word}/rp_filter").write_text("1")

    monkeypatch.setattr(namespaces.netns, "create", strict)
    text = "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2"
    with laboratory.standing(a_laboratory(text, routing="ecmp:1"), register) as entry:
        for name in entry.namespaces.values():
            with namespaces.inside(name):
                conf = {path.parent.name: path for path in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter")}
                found = {word: path.read_text() for word, path in conf.items() if word in written or is_of_cable(word)}
                assert set(found.values()) == {"0\n"}, found
        for source in entry.addresses:
            for target in set(entry.addresses) - {source}:
                carried(entry, source, target, 1000)


def test_a_link_is_down_where_somebody_took_it_down_and_no_other_interface_counts(register):
    with laboratory.standing(a_laboratory(), register) as entry:
        with namespaces.socket_of(entry.namespaces["host:1"]) as kernel:
            kernel.link("add", ifname="tunl7", kind="veth", peer={"ifname": "sit7"})
            assert laboratory.links_down(entry) == []
            kernel.link("set", index=kernel.link_lookup(ifname="eth0")[0], state="down")
        with namespaces.socket_of(entry.namespaces["switch:0"]) as kernel:
            kernel.link("set", index=kernel.link_lookup(ifname="port2")[0], state="down")
        assert laboratory.links_down(entry) == ["eth0 of host:1 is down", "port2 of switch:0 is down"]


def test_a_namespace_that_is_gone_is_refused_and_not_made():
    name = f"quadrille-gone{os.getpid()}-host0"
    with pytest.raises(RunError, match=f"namespace {name}: No such file"), namespaces.inside(name):
        pass
    assert not namespaces.exists(name)
    assert list(namespaces.processes(name)) == []
    entry = LaboratoryRecord(name="gone", topology="", addresses={}, namespaces={"host:0": name}, rates={})
    assert laboratory.links_down(entry) == []


@needs_quiet
def test_a_link_carries_its_rate_and_no_more(register):
    size, rate = 4_000_000, 10e6
    with laboratory.standing(a_laboratory("star:hosts=2", rate), register) as entry:
        seconds = min(carried(entry, "host:0", "host:1", size) for _ in range(3))
    assert seconds > 0.9 * (size - 2 * burst_bytes(rate)) / rate
    assert seconds < 3 * size / rate  # a loaded machine may be slower, not a hundred times


@needs_quiet
def test_what_is_sent_waits_for_its_turn_and_not_behind_all_that_others_have_sent(register):
    rate = 5e6
    with laboratory.standing(a_laboratory("dumbbell:hosts=6", rate), register) as entry:
        others = [(entry, f"host:{number}", f"host:{3 + number}", round(0.8 * rate)) for number in range(2)]
        threads = [threading.Thread(target=carried, args=told) for told in others]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        seconds = sorted(carried(entry, "host:2", "host:5", 1) for _ in range(5))
        meanwhile = all(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
    assert meanwhile
    assert seconds[2] < 3 * WHOLE_PACKET / rate  # one packet of each of the others; in one queue 50 ms and more


@needs_quiet
def test_flows_share_an_oversubscribed_uplink(register):
    size, rate = 2_000_000, 10e6
    with laboratory.standing(a_laboratory("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2", rate), register) as entry:
        seconds = [0.0, 0.0]

        def one(number):
            seconds[number] = carried(entry, f"host:{number}", f"host:{2 + number}", size)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(seconds) > 0.9 * (2 * size - 4 * burst_bytes(rate)) / rate


def test_a_name_that_is_taken_is_refused_and_two_laboratories_stand_side_by_side(register):
    one, other = (a_laboratory(name=f"{word}{os.getpid()}") for word in ("one", "two"))
    with laboratory.standing(one, register) as first, laboratory.standing(other, register) as second:
        with pytest.raises(InputError, match=r"one[0-9]+.*is up"):
            laboratory.up(one, register)
        assert carried(first, "host:0", "host:1", 1000) < 5
        assert carried(second, "host:0", "host:1", 1000) < 5
    assert not list(register.every())


def test_a_namespace_that_is_not_ours_is_left_alone(monkeypatch, register):
    planned = a_laboratory()
    stranger = planned.namespaces["host:1"]
    namespaces.netns.create(stranger)
    try:
        with pytest.raises(InputError, match=stranger):
            laboratory.up(planned, register)
        laboratory.down(planned.name, register)
        assert namespaces.exists(stranger)
    finally:
        namespaces.netns.remove(stranger)


def test_what_the_kernel_refuses_midway_leaves_nothing(monkeypatch, register):
    def refuse(*_arguments):
        raise OSError("no more")

    monkeypatch.setattr(namespaces, "_connect", refuse)
    with pytest.raises(Exception, match="no more"):
        laboratory.up(a_laboratory(), register)
    assert not list(register.every())


BEGIN = """
import sys, time
from pathlib import Path
from quadrille.runtime.laboratory import namespaces
name, folder = sys.argv[1:]
if "slow" in name:
    # a signal between its check by the interpreter and a sleep is seen after the sleep, so the sleeps are short
    namespaces._connect = lambda *_: (print("building", flush=True), [time.sleep(0.05) for _ in range(1200)])
print("begun", flush=True)
"""
BY_COMMAND = """
from quadrille.cli.main import main
sys.exit(main(["lab", "up", "star:hosts=2", "--rate", "100mbit", "--name", name]))
"""
IN_A_REGISTER = """
from quadrille.experiments.laboratory.laboratory_commands import bring_up
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.laboratory.register import Register
register = Register(Path(folder))
run_as_program(lambda: bring_up("star:hosts=2", rate="100mbit", routing="", name=name, register=register))
"""


def bringing_up(name, register=None):
    """A process that has begun to bring a laboratory up; one of a slow name is within it when it says so.

    Parameters
    ----------
    register : register of the laboratory; the machine's, as `quadrille lab up` takes it, if not given
    """
    source, folder = (IN_A_REGISTER, register.folder) if register is not None else (BY_COMMAND, "")
    return subprocess.Popen(
        [sys.executable, "-P", "-c", BEGIN + source, name, str(folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_laboratory_whose_building_is_ended_leaves_nothing(number):
    name = f"slow{os.getpid()}"
    building = bringing_up(name)
    assert [building.stdout.readline() for _ in range(2)] == ["begun\n", "building\n"]
    assert namespaces.exists(f"quadrille-{name}-host0")
    building.send_signal(number)
    _, err = building.communicate(timeout=20)
    assert (building.returncode, err) == (130, "quadrille: interrupted\n")
    assert MACHINE_REGISTER.read(name) is None
    assert not list(namespaces.FOLDER.glob(f"quadrille-{name}-*"))


def test_a_laboratory_whose_builder_was_killed_is_not_up_and_the_next_takes_its_place(register):
    name = f"slow{os.getpid()}"
    building = bringing_up(name, register)
    assert [building.stdout.readline() for _ in range(2)] == ["begun\n", "building\n"]
    building.kill()
    building.communicate()
    (left,) = register.every()
    assert left.abandoned
    entry = laboratory.up(a_laboratory(name=name), register)
    assert (register.read(name), entry.owner, entry.abandoned) == (entry, 0, False)
    assert carried(entry, "host:0", "host:1", 1000) < 5


def test_of_two_that_bring_up_one_name_at_once_the_first_does(monkeypatch, register):
    planned, others, exists = a_laboratory("star:hosts=2", name=f"both{os.getpid()}"), [], namespaces.exists

    def meanwhile(name):
        """What the first asks before it enters its laboratory, while a second begins."""
        if not others:
            others.append(bringing_up(planned.name, register))
            assert others[0].stdout.readline() == "begun\n"
            with suppress(subprocess.TimeoutExpired):
                others[0].wait(2)
        return exists(name)

    monkeypatch.setattr(namespaces, "exists", meanwhile)
    entry = laboratory.up(planned, register)
    _, err = others[0].communicate(timeout=20)
    assert others[0].returncode == 2 and err.splitlines()[-1].startswith(
        f"quadrille: laboratory '{planned.name}' is up"
    ), err
    assert carried(entry, "host:0", "host:1", 1000) < 5


def test_a_laboratory_that_is_taken_down_while_it_is_built_does_not_stand(monkeypatch, register):
    build = namespaces.build

    def built(made, names):
        build(made, names)
        assert laboratory.down(f"t{os.getpid()}", register)

    monkeypatch.setattr(namespaces, "build", built)
    with pytest.raises(RunError, match="was taken down while it was brought up"):
        laboratory.up(a_laboratory(), register)
    assert not list(register.every())


def test_a_run_whose_laboratory_was_taken_down_leaves_the_next_of_its_name_alone(register):
    with laboratory.standing(a_laboratory(), register) as entry:
        laboratory.down(entry.name, register)
        after = laboratory.up(a_laboratory(), register)
    assert register.read(after.name) == after
    assert carried(after, "host:0", "host:1", 1000) < 5


def test_what_is_wrong_with_another_laboratory_is_a_remark(monkeypatch, capsys, register):
    process = subprocess.Popen(["true"])
    process.wait()
    resists = f"resists{os.getpid()}"
    register.write(
        LaboratoryRecord(
            name=resists, topology="", addresses={}, namespaces={"a": resists}, rates={}, owner=process.pid
        )
    )
    register.path_of("newer").write_text('{"schema": "quadrille/laboratory/9"}')
    remove = namespaces.remove

    def cannot(name):
        if name == resists:
            raise RunError("processes 1, 2 cannot be ended")
        remove(name)

    monkeypatch.setattr(namespaces, "remove", cannot)
    entry = laboratory.up(a_laboratory(), register)
    assert carried(entry, "host:0", "host:1", 1000) < 5
    assert laboratory.down(entry.name, register)
    lines = capsys.readouterr().err.splitlines()
    left = f"laboratory {resists}, left by a killed process, is not down: processes 1, 2"
    assert [sum(words in one for one in lines) for words in (left, "newer than this Quadrille reads")] == [2, 2]
    with pytest.raises(RunError, match="cannot be ended"):
        laboratory.up(a_laboratory(name=resists), register)
    register.remove(resists)


def test_processes_on_a_host_end_with_the_laboratory(register):
    entry = laboratory.up(a_laboratory(), register)
    child = subprocess.Popen(["nsenter", f"--net={namespaces.FOLDER / entry.namespaces['host:0']}", "sleep", "60"])
    while child.pid not in namespaces.processes(entry.namespaces["host:0"]):
        time.sleep(0.01)
    laboratory.down(entry.name, register)
    assert child.wait(5) == -signal.SIGKILL


def lab_run(*words, topology="star:hosts=2", ranks=2):
    """A command on ranks on the hosts of a topology, ended."""
    return subprocess.run(
        [*QUADRILLE, "lab", "run", topology, "--rate", "400mbit", "-n", str(ranks), "--", *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )


@pytest.mark.mpi
def test_ranks_run_on_the_hosts_and_nothing_is_left():
    ran = lab_run("run", "--matmul", "256,256,256", "--grid", "x=2", "--verify")
    assert ran.returncode == 0, ran.stderr
    assert "2 ranks" in ran.stdout


@pytest.mark.mpi
@pytest.mark.parametrize(
    "topology", ["leaf-spine:leaves=2,spines=2,hosts_per_leaf=2", "tree:down=2x2,up=1x1,parallel=1x1"]
)
def test_ranks_reach_each_other_over_several_switches_and_paths(topology, tmp_path):
    path = tmp_path / "measured.json"
    words = ["run", "--matmul", "128,128,128", "--grid", "z=2,x=2", "--passes", "training", "--repeats", "1"]
    ran = lab_run(*words, "--verify", "--json", str(path), topology=topology, ranks=4)
    assert ran.returncode == 0, ran.stderr
    record = load_record(path)
    assert record.ranks == 4 and record.verified.ok
    assert record.reference.concurrent_ranks == min(4, len(os.sched_getaffinity(0)))


@pytest.mark.mpi
def test_ranks_run_in_two_laboratories_side_by_side():
    words = ["run", "--matmul", "128,128,128", "--grid", "x=2", "--verify", "--repeats", "1"]
    with ThreadPoolExecutor(2) as both:
        ran = list(both.map(lambda _: lab_run(*words), range(2)))
    assert [one.returncode for one in ran] == [0, 0], [one.stderr for one in ran]


@pytest.mark.mpi
def test_any_program_runs_on_the_hosts_and_ends_as_its_ranks_do(tmp_path):
    hosts = tmp_path / "hosts.py"
    hosts.write_text(
        "import sys\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\nnames = world.gather(MPI.Get_processor_name())\n"
        "if names:\n    print(*(name.rpartition('-')[2] for name in names), *sys.argv[1:])\n"
        "sys.exit(3 if 'fails' in sys.argv and world.rank == 1 else 0)\n"
    )
    ran = lab_run(sys.executable, str(hosts), "run", "two words")
    assert (ran.returncode, ran.stdout.split()) == (0, ["host0", "host1", "run", "two", "words"]), ran.stderr
    failed = lab_run(sys.executable, str(hosts), "fails")
    assert failed.returncode == 1
    assert failed.stderr.strip().splitlines()[-1].startswith("quadrille: "), failed.stderr


@pytest.mark.mpi
def test_a_killed_run_is_cleaned_by_the_next_laboratory():
    name = f"k{os.getpid()}"
    words = ["lab", "run", "star:hosts=2", "--rate", "100mbit", "--name", name, "-n", "2", "--", "run"]
    running = subprocess.Popen(
        [*QUADRILLE, *words, "--matmul", "4096,4096,4096", "--grid", "x=2", "--repeats", "50"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    spaces = [f"quadrille-{name}-host{number}" for number in range(2)]
    deadline = time.monotonic() + 60
    while not all(namespaces.exists(one) and list(namespaces.processes(one)) for one in spaces):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.1)
    running.kill()
    running.wait()
    down = subprocess.run([*QUADRILLE, "lab", "down", name], env=environment(), timeout=60, check=False)
    assert down.returncode == 0
    assert not any(namespaces.exists(one) for one in spaces)
    assert not list(Path("/dev/shm").glob(f"quadrille-{running.pid}-*"))


def test_without_root_one_line_says_so(monkeypatch, register):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="needs root"):
        laboratory.up(a_laboratory(), register)


def test_a_root_who_may_make_no_namespaces_hears_so_in_one_line():
    with pytest.raises(InputError, match="this container's may not"):
        namespaces.check_allowed("raise SystemExit(1)")


@pytest.mark.mpi
def test_a_calibration_in_a_laboratory_says_what_the_laboratory_is(tmp_path):
    path = tmp_path / "lab.toml"
    with laboratory.standing(parse_laboratory("star:hosts=2", "1gbit", name=f"c{os.getpid()}")) as entry:
        assert (
            launch_in_laboratory(
                entry, 2, ["calibrate", "--out", str(path)], program=("-m", "tests.support.calibrations")
            )
            == 0
        )
    machine = load_machine(path)
    assert machine.emulation.shared_cores and machine.host.ranks is None
    assert (machine.topology["family"], machine.topology["bandwidth"]) == ("star", 125e6)
    assert 0 < machine.network.payload_share <= 1 and machine.emulation.eager
    assert {row.pattern for row in machine.network.transfer} == {"shift", "one_way"}
    assert {row.busy_ranks for row in machine.device.gemm} == {min(2, machine.host.cores)}
    predicted, _ = predict_record_and_timeline(parse_matmul(MatmulFlags(matmul="64,64,64", grid="z=2")), machine)
    assert predicted.seconds > 0
    assert predicted.reference.concurrent_ranks == min(2, machine.host.cores)
