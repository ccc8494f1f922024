import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import GemmRow, KernelRow, LibraryRow, MemoryRow, PassRow, TransferRow
from quadrille.topologies.machines.machine import Device, Emulation, Host, Machine, NetworkCosts
from quadrille.topologies.machines.what_if import apply_settings, in_chunks, with_faults
from tests.support.toy_machines import star


def gemm(dtype, rate):
    return GemmRow(m=7, k=5, n=3, dtype=dtype, layout="NT", flops_per_second=rate)


@pytest.fixture
def machine():
    return Machine(
        name="toy",
        topology={"family": "star", "hosts": 6, "bandwidth_bytes_per_second": 25e6, "full": True, "ways": [2, 3]},
        device=Device(
            peak_flops_per_second={"float64": 8e10, "float32": 1.6e11},
            memory_bytes_per_second=1e10,
            memory_bytes=8e9,
            overhead_seconds=5e-6,
            gemm=(gemm("float64", 7e10), gemm("float32", 1.2e11)),
            memory=(MemoryRow(operation="copy", bytes=64, bytes_per_second=3e9),),
        ),
        host=Host(cores=2, transfer=(TransferRow(pattern="shift", ranks=2, bytes=8, seconds=1e-6),)),
    )


def test_no_settings_change_nothing(machine):
    assert apply_settings(machine, []) == machine


def test_chunks_are_those_that_are_asked_for_where_messages_go_ahead(machine):
    ahead = msgspec.structs.replace(machine, emulation=Emulation(eager=True))
    for size in (0, 4096):
        assert in_chunks(ahead, size).emulation == Emulation(eager=True, chunk_bytes=size)
    assert in_chunks(ahead, None) == ahead
    for waiting in (machine, msgspec.structs.replace(machine, emulation=Emulation())):
        assert in_chunks(waiting, 4096) == waiting


def test_the_machine_given_is_left_as_it_was(machine):
    before = msgspec.json.encode(machine)
    apply_settings(machine, ["device.gemm.flops_per_second=x3", "topology.hosts=1"])
    assert msgspec.json.encode(machine) == before


def test_a_factor_applies_to_every_entry_of_a_table_and_the_rows_that_refine_it(machine):
    device = apply_settings(machine, ["device.peak_flops_per_second=x2"]).device
    assert device.peak_flops_per_second == {"float64": 1.6e11, "float32": 3.2e11}
    assert [row.flops_per_second for row in device.gemm] == [1.4e11, 2.4e11]


def test_one_entry_of_a_table_takes_its_own_rows_along(machine):
    device = apply_settings(machine, ["device.peak_flops_per_second.float32=3.2e11"]).device
    assert device.peak_flops_per_second == {"float64": 8e10, "float32": 3.2e11}
    assert [row.flops_per_second for row in device.gemm] == [7e10, 2.4e11]


def test_memory_rows_follow_the_memory_rate(machine):
    device = apply_settings(machine, ["device.memory_bytes_per_second=x0.5"]).device
    assert (device.memory_bytes_per_second, device.memory[0].bytes_per_second) == (5e9, 1.5e9)


def with_kernels(machine, *functions):
    """The machine with a row of each function, in float32, of 2 ms."""
    rows = tuple(KernelRow(function=one, dtype="float32", bytes=64, seconds=2e-3) for one in functions)
    return msgspec.structs.replace(machine, device=msgspec.structs.replace(machine.device, kernel=rows))


def test_kernel_rows_follow_the_memory_rate_and_no_peak(machine):
    measured = with_kernels(machine, "gelu", "adam")
    device = apply_settings(measured, ["device.memory_bytes_per_second=x4"]).device
    assert [row.seconds for row in device.kernel] == [5e-4, 5e-4]
    assert apply_settings(measured, ["device.peak_flops_per_second=x4"]).device.kernel == measured.device.kernel


def test_passes_follow_the_memory_rate_and_products_of_small_matrices_the_peak_of_their_dtype(machine):
    rows = tuple(
        PassRow(operation=operation, dtype="float32", rows=8, columns=4, seconds=2e-3)
        for operation in ("exponential", "product_nt")
    )
    measured = msgspec.structs.replace(machine, device=msgspec.structs.replace(machine.device, passes=rows))

    def seconds(setting):
        return [row.seconds for row in apply_settings(measured, [setting]).device.passes]

    assert seconds("device.memory_bytes_per_second=x4") == [5e-4, 2e-3]
    assert seconds("device.peak_flops_per_second.float32=x4") == [2e-3, 5e-4]
    assert seconds("device.peak_flops_per_second.float64=x4") == [2e-3, 2e-3]


@pytest.mark.parametrize("function", ["attention", "attention_gradient", "attention_keeping"])
def test_rows_of_attention_do_not_say_what_they_follow(machine, function):
    measured = with_kernels(machine, "gelu", function)
    for quantity in ("memory_bytes_per_second", "peak_flops_per_second", "peak_flops_per_second.float32"):
        with pytest.raises(InputError, match=f"device.kernel has rows of {function}, .* take them out"):
            apply_settings(measured, [f"device.{quantity}=x2"])
        apply_settings(measured, [f"device.{quantity}=x1"])
    apply_settings(measured, ["device.peak_flops_per_second.float64=x2"])


def between_hosts(machine, **topology):
    """The machine with steps and collectives between its hosts: 1 and 9 ms beside other groups' 2 and 4 ms."""
    seconds = [(3, 8, 1e-3), (3, 1 << 20, 9e-3), (5, 8, 2e-3), (5, 1 << 20, 4e-3)]
    network = NetworkCosts(
        transfer=tuple(TransferRow(pattern="shift", ranks=n, bytes=b, seconds=t) for n, b, t in seconds),
        library=tuple(
            LibraryRow(
                kind="all_gather", ranks=n, stride=1, world_size=6, bytes=b, seconds=t, back_to_back_seconds=2 * t
            )
            for n, b, t in seconds
        ),
    )
    return msgspec.structs.replace(machine, network=network, topology=machine.topology | topology)


def seconds_of(rows):
    return [row.seconds for row in rows]


@pytest.mark.parametrize(
    ("setting", "seconds"),
    [
        ("topology.bandwidth_bytes_per_second=x2", [1e-3, 5e-3, 2e-3, 3e-3]),
        ("topology.bandwidth_bytes_per_second=50e6", [1e-3, 5e-3, 2e-3, 3e-3]),
        ("topology.latency_seconds=x3", [3e-3, 11e-3, 6e-3, 8e-3]),
        ("topology.hosts=x2", [1e-3, 9e-3, 2e-3, 4e-3]),
    ],
)
def test_steps_and_the_librarys_collectives_between_hosts_follow_their_links(machine, setting, seconds):
    network = apply_settings(between_hosts(machine, latency_seconds=1e-5), [setting]).network
    assert seconds_of(network.transfer) == seconds_of(network.library) == pytest.approx(seconds)
    assert [row.back_to_back_seconds for row in network.library] == pytest.approx([2 * one for one in seconds])


def test_of_the_librarys_collectives_by_two_calls_each_has_a_latency_of_its_own(machine):
    library = tuple(
        LibraryRow(kind="all_gather", ranks=3, stride=1, world_size=6, bytes=size, calls=calls, seconds=seconds)
        for calls, size, seconds in (
            ("regular", 8, 1e-3),
            ("regular", 1 << 20, 9e-3),
            ("vector", 8, 2e-3),
            ("vector", 1 << 20, 4e-3),
        )
    )
    links = machine.topology | {"latency_seconds": 1e-5}
    measured = msgspec.structs.replace(machine, network=NetworkCosts(library=library), topology=links)
    network = apply_settings(measured, ["topology.latency_seconds=x3"]).network
    assert seconds_of(network.library) == pytest.approx([3e-3, 11e-3, 6e-3, 8e-3])


def test_the_latency_of_steps_that_follow_others_is_one_of_links_too(machine):
    measured = between_hosts(machine, latency_seconds=1e-5)
    measured = msgspec.structs.replace(
        measured, emulation=Emulation(back_to_back_latency_seconds=4e-4, sender_ack_delay_seconds=7e-4)
    )
    found = [
        apply_settings(measured, [f"topology.{quantity}=x3"]).emulation
        for quantity in ("latency_seconds", "bandwidth_bytes_per_second")
    ]
    assert [one.back_to_back_latency_seconds for one in found] == pytest.approx([12e-4, 4e-4])
    assert [one.sender_ack_delay_seconds for one in found] == pytest.approx([21e-4, 7e-4])


def test_what_was_not_measured_of_latency_is_not_known_at_another_either(machine):
    measured = between_hosts(machine, latency_seconds=1e-5)
    emulated = apply_settings(measured, ["topology.latency_seconds=x3"]).emulated
    assert (emulated.back_to_back_latency_seconds, emulated.sender_ack_delay_seconds) == (None, 0.0)


@pytest.mark.parametrize("key", ["bandwidth", "bandwidth_bytes_per_second"])
def test_a_rate_without_its_unit_as_laboratories_have_it_and_a_list_of_rates_are_rates(machine, key):
    plain = {name: value for name, value in machine.topology.items() if not name.startswith("bandwidth")}
    for rate in (25e6, [25e6, 1e9]):
        measured = between_hosts(msgspec.structs.replace(machine, topology=plain), **{key: rate})
        network = apply_settings(measured, [f"topology.{key}=x2"]).network
        assert seconds_of(network.transfer) == seconds_of(network.library)
        assert seconds_of(network.library) == pytest.approx([1e-3, 5e-3, 2e-3, 3e-3])


UPLINKS = {"uplink_bandwidth_bytes_per_second": 1e8, "latency_seconds": 1e-5, "uplink_latency_seconds": 2e-5}


def test_rows_follow_several_bandwidths_or_latencies_that_settings_change_by_one_factor(machine):
    measured = between_hosts(machine, **UPLINKS)
    both = ["topology.bandwidth_bytes_per_second=x2", "topology.uplink_bandwidth_bytes_per_second=2e8"]
    network = apply_settings(measured, both).network
    assert seconds_of(network.transfer) == seconds_of(network.library) == pytest.approx([1e-3, 5e-3, 2e-3, 3e-3])
    later = ["topology.latency_seconds=x3", "topology.uplink_latency_seconds=x3", "network.transfer.seconds=x2"]
    network = apply_settings(measured, [*both, *later]).network
    assert seconds_of(network.library) == pytest.approx([3e-3, 7e-3, 6e-3, 7e-3])
    assert seconds_of(network.transfer) == pytest.approx([6e-3, 14e-3, 12e-3, 14e-3])


@pytest.mark.parametrize("rows", ["transfer", "library"])
@pytest.mark.parametrize(
    ("settings", "several"),
    [
        (["uplink_bandwidth_bytes_per_second=x2"], "bandwidth_bytes_per_second, uplink_bandwidth_bytes_per_second"),
        (["bandwidth_bytes_per_second=x0.5"], "bandwidth_bytes_per_second, uplink_bandwidth_bytes_per_second"),
        (["latency_seconds=x2", "uplink_latency_seconds=x3"], "latency_seconds, uplink_latency_seconds"),
    ],
)
def test_rows_that_may_go_by_any_of_several_links_are_no_guess(machine, rows, settings, several):
    measured = between_hosts(machine, **UPLINKS)
    network = NetworkCosts(**{rows: getattr(measured.network, rows)})
    settings = [f"topology.{setting}" for setting in settings]
    with pytest.raises(InputError) as refused:
        apply_settings(msgspec.structs.replace(measured, network=network), settings)
    line = f"--set {settings[-1]}: rows of network.{rows} do not say which of {several} held them up: change all by one"
    assert str(refused.value).startswith(line)


def test_rows_within_a_host_follow_no_link_and_no_memory_of_the_device(machine):
    settings = ["topology.bandwidth_bytes_per_second=x2", "device.memory_bytes_per_second=x2"]
    assert apply_settings(machine, settings).host == machine.host


@pytest.mark.parametrize(
    ("topology", "setting", "words"),
    [
        (
            {"uplink_bandwidth_bytes_per_second": 1e8},
            "topology.uplink_bandwidth_bytes_per_second=x2",
            "network.library do not say which of bandwidth_bytes_per_second, uplink_bandwidth_bytes_per_second",
        ),
        ({"latency_seconds": 0.0}, "topology.latency_seconds=1e-6", "network.library were measured at 0.0, and do"),
        ({"bandwidth": [1e9, 2e9]}, "topology.bandwidth=4e9", "network.transfer and network.library were measured at"),
        ({"bandwidth": "1e9x2e9"}, "topology.bandwidth=1e9x4e9", "were measured at 1e9x2e9, and do not say what"),
    ],
)
def test_rows_that_do_not_say_what_they_would_follow_are_no_guess(machine, topology, setting, words):
    with pytest.raises(InputError, match=words) as refused:
        apply_settings(between_hosts(machine, **topology), [setting])
    assert str(refused.value).startswith(f"--set {setting}: ")
    apply_settings(msgspec.structs.replace(machine, topology=machine.topology | topology), [setting])


@pytest.mark.parametrize("path", ["topology.bandwidth_bytes_per_second", "device.memory_bytes_per_second"])
def test_a_rate_of_nothing_is_refused_before_rows_follow_it(machine, path):
    with pytest.raises(InputError, match=path):
        apply_settings(with_kernels(between_hosts(machine), "gelu"), [f"{path}=0"])


def test_rows_are_changed_together(machine):
    assert [
        row.flops_per_second for row in apply_settings(machine, ["device.gemm.flops_per_second=x2"]).device.gemm
    ] == [
        1.4e11,
        2.4e11,
    ]
    assert apply_settings(machine, ["host.transfer.seconds=x4"]).host.transfer[0].seconds == 4e-6


def test_settings_follow_each_other(machine):
    assert apply_settings(machine, ["topology.hosts=x2", "topology.hosts=x2"]).topology["hosts"] == 24


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("topology.hosts=x0.5", "hosts", 3),
        ("topology.hosts=12", "hosts", 12),
        ("topology.hosts=1e1", "hosts", 10),
        ("topology.bandwidth_bytes_per_second=50e9", "bandwidth_bytes_per_second", 50e9),
        ("topology.bandwidth_bytes_per_second=5", "bandwidth_bytes_per_second", 5.0),
        ("topology.family=fat-tree", "family", "fat-tree"),
        ("topology.family=x25", "family", None),
        ("topology.full=false", "full", False),
        ("topology.ways=x2", "ways", [4, 6]),
    ],
)
def test_types_are_kept(machine, setting, key, value):
    if value is None:
        with pytest.raises(InputError, match="cannot be multiplied"):
            apply_settings(machine, [setting])
        return
    changed = apply_settings(machine, [setting]).topology[key]
    assert changed == value
    assert type(changed) is type(machine.topology[key])


def test_an_optional_number_can_be_given(machine):
    assert apply_settings(machine, ["host.memory_bytes_per_second=2e10"]).host.memory_bytes_per_second == 2e10


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("device.peak=x2", ["device has no 'peak'", "peak_flops_per_second", "memory_bytes"]),
        ("devise.peak=x2", ["the machine has no 'devise'", "device", "topology"]),
        ("device.peak_flops_per_second.float16=x2", ["'float16'", "float64, float32"]),
        ("device.gemm.rate=x2", ["device.gemm has no 'rate'", "flops_per_second"]),
        ("device.memory_bytes.unit=2", ["no 'unit'", "nothing lies below"]),
        ("device.gemm=x2", ["device.gemm is not a number", "flops_per_second"]),
        ("device=x2", ["device is not a number", "gemm"]),
        ("network.transfer.seconds=x2", ["this machine has no network"]),
        ("host.memory_bytes_per_second=x2", ["None is not a number"]),
        ("device.memory_bytes=0", ["device.memory_bytes = 0.0", "> 0"]),
        ("device.memory_bytes=-1", ["device.memory_bytes = -1.0", "> 0"]),
        ("device.memory_bytes=x0", ["factor 0", "above 0"]),
        ("device.memory_bytes=x-2", ["factor -2", "above 0"]),
        ("device.memory_bytes=x1e308", ["inf", "finite"]),
        ("device.memory_bytes=nan", ["'nan' is not a finite number"]),
        ("overhead=2us", ["the machine has no 'overhead'; accepted: ", "; did you mean device.overhead_seconds?"]),
        ("device.overhead_seconds=-1us", ["device.overhead_seconds = -1e-06", ">= 0"]),
        ("device.memory_bytes=lots", ["'lots' is not a finite number"]),
        ("topology.hosts=x0.3", ["whole number"]),
        ("topology.hosts=2.5", ["'2.5' is not a whole number"]),
        ("topology.hosts=0", ["topology.hosts = 0", "above 0"]),
        ("topology.full=maybe", ["true or false"]),
        ("device.gemm.dtype=float8", ["device.gemm[0].dtype = 'float8'", "float64"]),
        ("device.memory_bytes", ["PATH=VALUE"]),
        ("=x2", ["PATH=VALUE"]),
        ("device.memory_bytes=", ["PATH=VALUE"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(machine, setting, words):
    with pytest.raises(InputError) as refused:
        apply_settings(machine, [setting])
    message = str(refused.value)
    assert "\n" not in message
    assert all(word in message for word in [f"--set {setting}", *words]), message


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("topology.latency=1.35us", ("topology", "latency_seconds"), 1.35e-6),
        ("topology.bandwidth_bytes_per_second=400Gbit/s", ("topology", "bandwidth_bytes_per_second"), 50e9),
        ("topology.nvlink_bandwidth=x2", ("topology", "nvlink_bandwidth_bytes_per_second"), 200e9),
        ("device.memory_bytes=80GB", ("device", "memory_bytes"), 80e9),
        ("device.overhead_seconds=2us", ("device", "overhead_seconds"), 2e-6),
    ],
)
def test_values_have_units_and_arguments_of_a_topology_need_none_in_their_names(setting, path, value):
    from quadrille.topologies.find_machine import find_machine

    table = getattr(find_machine("perlmutter", [setting], gpus=8), path[0])
    assert (table[path[1]] if isinstance(table, dict) else getattr(table, path[1])) == value


def test_a_short_name_of_a_dtype_is_its_peak():
    from quadrille.topologies.find_machine import find_machine

    peaks = find_machine("perlmutter", ["device.peak_flops_per_second.bf16=1PFLOP/s"]).device.peak_flops_per_second
    assert peaks["bfloat16"] == 1e15


def test_a_key_that_is_spelled_wrong_gets_the_nearest():
    from quadrille.topologies.find_machine import find_machine

    with pytest.raises(InputError, match=r"did you mean memory_bytes or memory\?"):
        find_machine("perlmutter", ["device.memory_byts=x2"])


@pytest.mark.parametrize("fault", ["degrade", "slow"])
def test_a_share_that_no_record_accepts_is_refused(fault):
    with pytest.raises(InputError, match=r"NAME=1e-320: a share of 1e-09 and more is accepted"):
        with_faults(star(2), **{fault: ["NAME=1e-320"]})
