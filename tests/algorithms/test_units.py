import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms import units
from quadrille.algorithms.errors import InputError


def test_a_bit_is_an_eighth_of_a_byte():
    assert units.parse_rate("200Gb/s") == units.parse_rate("25GB/s") == 25e9
    assert units.parse_rate("200Gbit/s") == units.parse_rate("200 Gbps") == 25e9


def test_binary_prefixes_are_powers_of_1024_and_decimal_ones_of_1000():
    assert [units.parse_bytes(f"1{unit}") for unit in ("KiB", "MiB", "GiB", "TiB")] == [2**10, 2**20, 2**30, 2**40]
    assert [units.parse_bytes(f"1{unit}") for unit in ("kB", "MB", "GB", "TB")] == [10**3, 10**6, 10**9, 10**12]


@given(st.integers(1, 10**6))
def test_decimal_fractions_are_exact(thousandths):
    assert units.parse_bytes(f"{thousandths / 1000:.3f}kB") == thousandths


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "1 elephant", "MB", "nan", "inf", "1e400", "1b", "0x10", "1e", "1 MB MB"]
)
def test_a_size_that_cannot_be_is_refused_by_name(text):
    with pytest.raises(InputError, match="size"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "-2GB/s", "fast", "1/s/s"])
def test_a_rate_that_cannot_be_is_refused_by_name(text):
    with pytest.raises(InputError, match="rate"):
        units.parse_rate(text)


def test_an_unknown_unit_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"'GiBB'.*accepted: .*GiB"):
        units.parse_bytes("3GiBB")


@given(st.floats(1e-9, 1e6))
def test_a_printed_time_keeps_three_digits(seconds):
    number, unit = units.format_seconds(seconds).split()
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=5.1e-3)
    assert unit == "s" or float(number) < 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9999, "1.00 s"),
        (0.0009999, "1.00 ms"),
        (1e-12, "0 s"),
        (0.6e-9, "0.600 ns"),
        (-0.002, "-2.00 ms"),
        (123.0, "123 s"),
        (1234.0, "1234 s"),
        (float("inf"), "inf s"),
    ],
)
def test_times_at_the_edge_of_a_unit_move_to_the_next(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize("number", [1e12, 1e25, 1e306])
@pytest.mark.parametrize("formatted", [units.format_seconds, units.format_bytes, units.format_bytes_per_second])
def test_an_absurd_quantity_is_printed_with_an_exponent(formatted, number):
    for value in (number, -number):
        assert len(formatted(value)) < 16
        assert float(formatted(value).split()[0]) * value > 0
    assert units.format_percent(number) == f"{100 * number:.3g} %"


@given(st.integers(1, 2**60))
def test_a_printed_size_keeps_three_digits(size):
    number, unit = units.format_bytes(size).split()
    assert units.parse_bytes(str(size)) == size
    assert float(number) * float(units.BYTES_OF_UNIT[unit]) == pytest.approx(size, rel=5.1e-3)


def test_rates_of_data_are_printed_in_powers_of_1000():
    assert units.format_bytes_per_second(1024) == "1.02 kB/s"
    assert units.format_bytes_per_second(3) == "3 B/s"


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("1.35us", "latency", 1.35e-6),
        ("600ns", "latency_seconds", 6e-7),
        ("400Gbit/s", "bandwidth", 50e9),
        ("50GB/s", "uplink_bandwidth_bytes_per_second", 50e9),
        ("989.4TFLOP/s", "peak_flops_per_second.bfloat16", 989.4e12),
        ("80GB", "memory_bytes", 80e9),
        ("4", "hosts", 4.0),
    ],
)
def test_a_measure_has_the_unit_of_its_name(text, name, number):
    assert units.parse_measure(text, name) == number


@pytest.mark.parametrize(("text", "name"), [("1us", "bandwidth"), ("1GB/s", "latency"), ("4GB", "hosts"), ("x", "s")])
def test_a_unit_of_another_quantity_is_refused(text, name):
    with pytest.raises(InputError, match=r"unknown unit|is not a number"):
        units.parse_measure(text, name)
