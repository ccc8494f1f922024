"""`like` in machine files, machines written as files, and every number of a machine that can be set."""

import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine, path_of
from quadrille.topologies.machines.machine_catalogue import MACHINES, as_machine, as_machine_file, machine
from quadrille.topologies.machines.machine_file import load_machine, save_machine

STAR = '[topology]\nfamily = "star"\nhosts = 2\nbandwidth_bytes_per_second = 1e9\nlatency_seconds = 1e-6\n'


@pytest.fixture
def file(tmp_path):
    def write(text, version=2):
        path = tmp_path / "mine.toml"
        path.write_text(f'schema = "quadrille/machine/{version}"\nname = "mine"\n{text}')
        return path

    return write


@pytest.mark.parametrize("version", [1, 2])
def test_a_device_is_like_that_of_a_named_machine_and_keys_beside_override_it(file, version):
    text = '[device]\nlike = "h100-superpod"\nmemory_bytes = 94e9\n[device.peak_flops_per_second]\nfloat64 = 60e12\n'
    device, named = load_machine(file(text + STAR, version)).device, find_machine("h100-superpod").device
    peaks = {**named.peak_flops_per_second, "float64": 60e12}
    assert device == msgspec.structs.replace(named, memory_bytes=94e9, peak_flops_per_second=peaks)


def test_a_topology_is_like_that_of_a_named_machine(file):
    loaded = load_machine(file('[topology]\nlike = "perlmutter"\ngpus = 8\n[device]\nlike = "alps"\n'))
    assert loaded.topology == as_machine(machine("perlmutter"), 8).topology


def test_a_table_is_like_that_of_another_file(file, tmp_path):
    save_machine(as_machine(machine("selene")), tmp_path / "other.toml")
    assert load_machine(file('[device]\nlike = "./other.toml"\n' + STAR)).device == find_machine("selene").device


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[device]\nlike = "perlmuter"\n', "device.like: machine 'perlmuter' is unknown; did you mean perlmutter?"),
        ("[device]\nlike = 3\n", "device.like = 3: the name of a machine"),
        ('[device]\nlike = "alps"\n[host]\nlike = "alps"\n', "host.like: machine 'alps' has no host"),
        ('[device]\nlike = "./mine.toml"\n', "refers to itself"),
    ],
)
def test_what_no_machine_is_like_is_refused(file, text, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        load_machine(file(text + STAR))


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_file_to_edit_builds_the_network_of_the_name(name, tmp_path):
    gpus = min(MACHINES[name].gpus, 1024)
    save_machine(as_machine_file(name, gpus), tmp_path / "edit.toml")
    written, named = load_machine(tmp_path / "edit.toml"), find_machine(name, gpus=gpus)
    assert (written.device, written.sources) == (named.device, named.sources)
    one, other = network_of(written), network_of(named)
    assert (one.name, one.kinds) == (other.name, other.kinds)
    assert one.bandwidths.tolist() == other.bandwidths.tolist()
    assert one.latencies.tolist() == other.latencies.tolist()


def is_small_peak(quantity):
    return quantity.quantity in ("peak_flops_per_second.float8", "peak_flops_per_second.float4")


@pytest.mark.parametrize("name", MACHINES)
def test_every_number_of_a_machine_can_be_set_and_has_an_effect(name):
    named = MACHINES[name]
    gpus = min(4 * max(named.unit, 130) * named.gpus_per_node, 4096)
    original = find_machine(name, gpus=gpus)
    paths = {quantity: path_of(named, quantity) for quantity in named.quantities}
    assert "device.memory_bytes" in paths.values()
    for quantity, path in paths.items():
        if path is None:
            counts = ("gpus_per_node", "nics_per_node")
            assert isinstance(quantity.value, str) or quantity.quantity in counts or is_small_peak(quantity)
            continue
        changed = find_machine(name, [f"{path}={2 * (quantity.number or 1):g}"], gpus=gpus)
        assert changed != original, path
        if path.startswith("topology.") and path != "topology.groups":
            one, other = network_of(changed), network_of(original)
            same = one.kinds == other.kinds and (one.bandwidths == other.bandwidths).all()
            assert not (same and (one.latencies == other.latencies).all()), path


def test_a_number_that_a_machine_does_not_have_is_refused():
    with pytest.raises(InputError, match="topology has no 'oversubscription'"):
        find_machine("perlmutter", ["topology.oversubscription=2"])
    with pytest.raises(InputError, match="oversubscription is unknown"):
        network_of(msgspec.structs.replace(find_machine("alps"), topology={"family": "alps", "oversubscription": 2.0}))


def test_names_in_any_case_mean_the_machine():
    assert find_machine("PerlMutter", gpus=8) == find_machine("perlmutter", gpus=8)


def test_files_that_refer_to_each_other_in_a_circle_are_refused(tmp_path):
    for name, other in (("one", "two"), ("two", "three"), ("three", "two")):
        (tmp_path / f"{name}.toml").write_text(f'schema = "quadrille/machine/2"\n[device]\nlike = "./{other}.toml"\n')
    with pytest.raises(InputError, match="refers to itself"):
        load_machine(tmp_path / "one.toml")


def test_a_machine_with_a_host_link_predicts_another_hash_and_one_without_keeps_its_own():
    plain, linked = find_machine("longhorn", gpus=8), find_machine("summit", gpus=8)
    assert plain.host_link is None and linked.host_link is not None
    assert linked.sha256 != msgspec.structs.replace(linked, host_link=None).sha256
    changed = msgspec.structs.replace(linked.host_link, bytes_per_second=2 * linked.host_link.bytes_per_second)
    assert linked.sha256 != msgspec.structs.replace(linked, host_link=changed).sha256


@pytest.mark.parametrize("key", ["bytes_per_second = 0", "gpus = 0", "memory_bytes = -1", "latency_seconds = -1e-6"])
def test_an_impossible_host_link_is_refused(file, key):
    keys = {"bytes_per_second": 1e10, "memory_bytes": 1e12, "memory_bytes_per_second": 1e11, "memory_gpus": 4}
    name = key.partition(" ")[0]
    lines = [f"{other} = {value}" for other, value in keys.items() if other != name]
    text = '[device]\nlike = "perlmutter"\n[host_link]\n' + "\n".join([*lines, key]) + "\n" + STAR
    with pytest.raises(InputError, match=f"host_link.{name}"):
        load_machine(file(text))
