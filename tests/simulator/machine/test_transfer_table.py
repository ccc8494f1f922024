"""Which measured transfers a transfer is predicted by."""

from quadrille.algorithms.formats.measured_rows import TransferRow
from quadrille.simulator.machine.seconds_by_size import rows_for


def row(pattern, ranks, seconds):
    return TransferRow(pattern=pattern, ranks=ranks, bytes=1 << 20, seconds=seconds)


ROWS = [row("shift", 2, 1.0), row("one_way", 2, 2.0), row("shift", 4, 3.0), row("exchange", 4, 4.0)]


def taken(pattern, ranks, rows=ROWS):
    measured, among = rows_for(rows, pattern, ranks, most=4)
    return measured.seconds(1 << 20), among


def test_rows_of_the_pattern_on_as_many_ranks():
    assert [taken(pattern, 4) for pattern in ("shift", "exchange")] == [(3.0, 4), (4.0, 4)]
    assert [taken(pattern, 2) for pattern in ("shift", "one_way")] == [(1.0, 2), (2.0, 2)]


def test_two_that_exchange_do_what_two_that_shift_do_unless_that_was_measured_too():
    assert taken("exchange", 2) == (1.0, 2)
    assert taken("exchange", 2, [*ROWS, row("exchange", 2, 5.0)]) == (5.0, 2)
    assert taken("exchange", 2, [row("exchange", 4, 4.0), row("one_way", 2, 2.0)]) == (4.0, 4)


def test_else_the_pattern_most_like_it_on_the_nearest_number_of_ranks():
    assert taken("exchange", 3) == (4.0, 4)
    assert taken("one_way", 4, ROWS[2:]) == (3.0, 4)
    assert rows_for([], "shift", 2, 4) is None
