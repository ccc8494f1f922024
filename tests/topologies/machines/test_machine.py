import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.topologies.machines.machine import Emulation, Machine
from quadrille.topologies.machines.machine_file import load_machine, save_machine
from tests.support.quadrille import HOST, ROOT

EXAMPLE = """schema = "quadrille/machine/1"
name = "two-hosts"
[topology]               # a family and its builder's arguments, or file = "net.json"
family = "leaf-spine"
leaves = 2
spines = 1
hosts_per_leaf = 4
bandwidth_bytes_per_second = 25e6
latency_seconds = 25e-6
[device]
peak_flops_per_second = { float64 = 8e10, float32 = 1.6e11 }
memory_bytes_per_second = 1e10
memory_bytes = 8e9
overhead_seconds = 5e-6
[[device.gemm]]          # measured rows, optional
m = 2048
k = 2048
n = 2048
dtype = "float64"
layout = "NN"
busy_ranks = 1
flops_per_second = 7.7e10
"""
MEASURED = """
[[device.memory]]
operation = "add"
bytes = 1048576
busy_ranks = 2
bytes_per_second = 9e9
spread = 0.02
[host]
cores = 2
memory_bytes_per_second = 2e10
[[host.transfer]]
pattern = "shift"
ranks = 2
bytes = 65536
seconds = 2e-5
[[network.transfer]]
pattern = "exchange"
ranks = 8
bytes = 65536
seconds = 3e-3
[reference]
gemm_seconds = 1e-3
copy_seconds = 2e-4
add_seconds = 3e-4
gemm_spread = 0.01
[fit]
residuals = { gemm = 0.021, "shift 2" = 0.3 }
warnings = ["shift 2: residual 30 %"]
[[sources]]
quantity = "device.memory_bytes"
value = 8e9
source = "/proc/meminfo"
"""


def machine_in(folder, text):
    (folder / "host.toml").write_text(text)
    return load_machine(folder / "host.toml")


@pytest.fixture
def machine(tmp_path):
    return machine_in(tmp_path, EXAMPLE + MEASURED)


def test_the_machine_of_the_design_page_is_read(tmp_path):
    machine = machine_in(tmp_path, EXAMPLE)
    assert machine.topology["leaves"] == 2
    assert machine.device.peak_flops_per_second == {"float64": 8e10, "float32": 1.6e11}
    assert machine.device.gemm[0].flops_per_second == 7.7e10
    assert machine.host is None


def test_a_machine_survives_its_file(machine, tmp_path):
    for name in ("again.toml", "name-without-an-ending"):
        save_machine(machine, tmp_path / name)
        assert load_machine(tmp_path / name) == machine


rates = st.floats(1e-9, 1e36)
names = st.text(max_size=8)


@given(
    rates, names, st.dictionaries(names, st.integers(1, 9) | rates | names | st.lists(st.integers(1, 9), min_size=1))
)
def test_any_machine_survives_its_file(tmp_path_factory, rate, name, arguments):
    raw = msgspec.to_builtins(machine_in(tmp_path_factory.getbasetemp(), EXAMPLE + MEASURED))
    raw["device"]["memory_bytes_per_second"] = rate
    raw["topology"] = {key: value for key, value in arguments.items() if key != "file"} | {"family": name}
    machine = msgspec.convert({**raw, "name": name}, Machine)
    path = tmp_path_factory.getbasetemp() / "any.toml"
    save_machine(machine, path)
    assert load_machine(path) == machine
    assert load_machine(path).sha256 == machine.sha256


def test_the_hash_knows_the_content_and_not_the_provenance(machine, tmp_path):
    stamped = msgspec.structs.replace(machine, provenance=provenance(["quadrille", "calibrate"]))
    save_machine(stamped, tmp_path / "stamped.toml")
    assert load_machine(tmp_path / "stamped.toml").sha256 == machine.sha256
    assert msgspec.structs.replace(machine, name="other").sha256 != machine.sha256


def test_the_hash_takes_equal_numbers_of_different_types_for_equal(machine):
    device = msgspec.structs.replace(machine.device, memory_bytes=8 * 10**9, memory_bytes_per_second=np.float64(1e10))
    assert msgspec.structs.replace(machine, device=device).sha256 == machine.sha256


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory_bytes = 8e9", "memory_bytes = 0", ["device.memory_bytes = 0", "> 0"]),
        ("memory_bytes = 8e9", "memory_bytes = -8e9", ["device.memory_bytes = -8000000000.0", "> 0"]),
        ("memory_bytes = 8e9", "memory_bytes = inf", ["device.memory_bytes = inf", "finite"]),
        ("memory_bytes = 8e9", "memory_bytes = nan", ["device.memory_bytes = nan", "finite"]),
        ("memory_bytes = 8e9", "memory_bytes = 'big'", ["device.memory_bytes = 'big'", "float"]),
        ("memory_bytes = 8e9", "memory = 8e9", ["TOML"]),
        ("memory_bytes = 8e9", "", ["device.memory_bytes is missing", "needed: peak_flops_per_second"]),
        ("overhead_seconds", "overhead", ["device.overhead is unknown", "overhead_seconds"]),
        ("float64 = 8e10", "float64 = -1", ["device.peak_flops_per_second.float64 = -1", ">= 1e-09"]),
        ("float64 = 8e10", "float65 = 8e10", ["device.peak_flops_per_second.float65 is unknown", "bfloat16"]),
        ('layout = "NN"', 'layout = "TT"', ["device.gemm[0].layout = 'TT'", "NN, NT, TN"]),
        ("flops_per_second = 7.7e10", "flops_per_second = 0", ["device.gemm[0].flops_per_second = 0", ">= 1e-09"]),
        ("leaves = 2", "leaves = 0", ["topology.leaves = 0", "above 0"]),
        ("25e-6", "-25e-6", ["topology.latency_seconds = -2.5e-05", "from 0"]),
        ("25e6", "nan", ["topology.bandwidth_bytes_per_second = nan", "finite"]),
        ('family = "leaf-spine"', "", ["topology", "family", "file"]),
        ('family = "leaf-spine"', 'family = "star"\nfile = "net.json"', ["topology", "either"]),
        ("\nranks = 2", "\nranks = 1", ["host.transfer[0].ranks = 1", ">= 2"]),
        ("quadrille/machine/1", "quadrille/machine/12", ["newer", "up to quadrille/machine/2"]),
        ("quadrille/machine/1", "quadrille/record/1", ["quadrille/record/1", "quadrille/machine/2 is accepted"]),
        ("quadrille/machine/1", "quadrille/machine/x", ["quadrille/machine/2 is accepted"]),
        ("[device]", "[device", ["host.toml is truncated or not TOML"]),
        ("[device]", "a." * 50_000 + "b = 1\n[device]", ["host.toml is nested too deeply"]),
        ("[device]", "[" + '"a" . ' * 64 + "b]\n[device]", ["host.toml is nested too deeply"]),
        ("gemm_seconds = 1e-3", "gemm_seconds = '1e-3", ["TOML"]),
    ],
)
def test_a_machine_file_with_a_fault_is_refused_in_one_line(tmp_path, old, new, words):
    text = EXAMPLE + MEASURED
    assert old in text
    with pytest.raises(InputError) as refused:
        machine_in(tmp_path, text.replace(old, new, 1))
    message = str(refused.value)
    assert "\n" not in message
    assert all(word in message for word in ["host.toml", *words]), message


def test_a_machine_may_have_links_without_latency(tmp_path):
    assert machine_in(tmp_path, EXAMPLE.replace("25e-6", "0")).topology["latency_seconds"] == 0


@pytest.mark.parametrize("length", range(0, EXAMPLE.index("overhead"), 37))
def test_a_file_cut_short_is_refused(tmp_path, length):
    with pytest.raises(InputError):
        machine_in(tmp_path, EXAMPLE[:length])


def test_keys_that_came_later_leave_the_hash_of_a_machine_as_it_was(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text(HOST)
    assert load_machine(path).sha256.startswith("3ab6270e")
    path.write_text(HOST.replace("[host]\n", "[host]\nshared_by_hosts = true\n"))
    assert not load_machine(path).sha256.startswith("3ab6270e")


LIBRARY = """
[[host.library]]
kind = "all_gather"
ranks = 2
apart = 1
of = 2
bytes = 4096
seconds = 1e-5
"""


def test_library_rows_that_do_not_say_the_calls_are_of_vector_calls_and_hash_as_before(tmp_path):
    old = machine_in(tmp_path, HOST + LIBRARY)
    assert [row.called for row in old.host.library] == ["vector"]
    assert old.sha256.startswith("0a481a3d")
    hashes = {old.sha256}
    for calls in ("vector", "regular"):
        machine = machine_in(tmp_path, HOST + LIBRARY + f'calls = "{calls}"\n')
        assert [row.called for row in machine.host.library] == [calls]
        save_machine(machine, tmp_path / "again.toml")
        assert load_machine(tmp_path / "again.toml") == machine
        hashes.add(machine.sha256)
    assert len(hashes) == 3


def test_a_collective_that_mpi_has_one_call_for_has_no_word_for_it(tmp_path):
    reduced = LIBRARY.replace("all_gather", "all_reduce")
    assert [row.called for row in machine_in(tmp_path, HOST + reduced).host.library] == [None]
    with pytest.raises(InputError, match=r"host\.library.* calls = 'vector': MPI has one call for all_reduce"):
        machine_in(tmp_path, HOST + reduced + 'calls = "vector"\n')


def test_shares_of_members_are_read_and_written_and_1_of_all_where_nothing_is_said(tmp_path):
    machine = machine_in(tmp_path, HOST + LIBRARY + "member_shares = [0.5, 1.0]\n")
    assert [row.shares for row in machine.host.library] == [(0.5, 1.0)]
    save_machine(machine, tmp_path / "again.toml")
    assert load_machine(tmp_path / "again.toml") == machine
    assert [row.shares for row in machine_in(tmp_path, HOST + LIBRARY).host.library] == [(1.0, 1.0)]


@pytest.mark.parametrize("wrong", ["[]", "[1.0]", "[0.5, 0.9]", "[0.5, 1.0, 1.0]"])
def test_shares_of_members_are_refused_that_are_not_of_all_or_of_which_none_is_the_last(tmp_path, wrong):
    with pytest.raises(InputError, match=r"member_shares = .*: expected one for each of 2 ranks, the largest 1"):
        machine_in(tmp_path, HOST + LIBRARY + f"member_shares = {wrong}\n")


def test_shares_of_members_are_refused_of_kinds_with_a_root(tmp_path):
    rooted = LIBRARY.replace("all_gather", "reduce")
    with pytest.raises(InputError, match=r"member_shares: of a reduce every member is the root in turn"):
        machine_in(tmp_path, HOST + rooted + "member_shares = [0.5, 1.0]\n")


HASHES = {
    "studies/fidelity/results/2026-11-26/dumbbell.toml": "e6f264357f2b8b72",
    "studies/fidelity/results/2026-11-26/leaf-spine-1to1.toml": "05347516e3d4b510",
    "studies/fidelity/results/2026-11-26/leaf-spine-2to1.toml": "c45c25091beb0ba6",
    "studies/fidelity/results/2026-11-26/shared-memory.toml": "fdbaa73b20335549",
    "studies/fidelity/results/2026-11-26/star.toml": "626cae331e9f4a0b",
    "tests/golden/machines/laboratory.toml": "c45c25091beb0ba6",
    "tests/golden/machines/older-star.toml": "493e335a28906bda",
    "tests/golden/machines/shared-memory.toml": "fdbaa73b20335549",
    "tests/golden/machines/toy-host.toml": "206446084140538e",
    "tests/golden/machines/toy-hosts.toml": "982cd29a4b1a9b69",
}
"""Hashes of committed machine files of version 1, as version 1 computed them."""


@pytest.mark.parametrize("name", HASHES)
def test_a_machine_file_of_version_1_keeps_its_hash_when_it_is_written_as_version_2(tmp_path, name):
    machine = load_machine(ROOT / name)
    assert machine.sha256.startswith(HASHES[name])
    save_machine(machine, tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text().startswith('schema = "quadrille/machine/2"')
    again = load_machine(tmp_path / "again.toml")
    assert again == machine and again.sha256 == machine.sha256


def test_keys_of_version_1_are_unknown_in_version_2(tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text(HOST.replace("machine/1", "machine/2").replace("[host]\n", "[host]\nthreads_default = 1\n"))
    with pytest.raises(InputError, match=r"host\.threads_default is unknown"):
        load_machine(path)


def test_properties_of_an_emulated_network_are_part_of_the_hash_whatever_other_tables_there_are(tmp_path):
    bare = msgspec.structs.replace(machine_in(tmp_path, HOST), host=None, network=None)
    emulated = msgspec.structs.replace(bare, emulation=Emulation(shared_cores=True))
    assert len({bare.sha256, emulated.sha256, msgspec.structs.replace(bare, emulation=Emulation()).sha256}) == 2
