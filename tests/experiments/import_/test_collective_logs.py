"""Logs of collective benchmarks: each format gives the same rows, and no damaged log ends in anything but one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.collective_logs import MeasuredCollective, collective_log

DEVICES = "".join(
    f"#  Rank {rank:2d} Group  0 Pid   6890 on node-{rank // 4} device  {rank % 4} [0000:0{rank}:00] NVIDIA H100\n"
    for rank in range(8)
)
NEW = (
    DEVICES
    + """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.00    0.00    0.00      0     5.00    0.00    0.00      0
     1048576        262144     float     sum      -1    50.00   20.97   36.70      0    48.00   21.85   38.23      0
    16777216       4194304     float     sum      -1   200.00   83.89  146.80      0   1e3   16.78   29.36    N/A
# Out of bounds values : 0 OK
"""
)
ALL_TO_ALL = """#     size       count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576         32768   float            87.42   11.99   10.50    N/A    88.90   11.79   10.32    N/A
"""
JSON = json.dumps(
    {
        "version": 4,
        "args": ["./build/all_gather_perf", "-b", "8"],
        "nccl_version": 22703,
        "config": {"devices": [{"rank": rank, "hostname": "a", "device_info": "H100"} for rank in range(4)]},
        "results": [{"size": 64, "type": "half", "out_of_place": {"time": 12.5}, "in_place": {"time": 11}}],
    }
)


def inspector(rank, micros, size=1024, ranks=8):
    header = {"id": "0x7f", "rank": rank, "n_ranks": ranks, "nnodes": 2}
    perf = {"coll": "ReduceScatter", "coll_sn": 7, "coll_msg_size_bytes": size, "coll_exec_time_us": micros}
    return json.dumps({"header": header, "metadata": {}, "coll_perf": perf})


OSU = "\n# OSU MPI Reduce_scatter Latency Test v7.3\n# Size       Avg Latency(us)\n4 1.5\n8 2.5\n".replace("_", "-")
PIECES = ["", "-1", "1e999", "é", "[" * 50, "nan", "{", "\n", "9" * 30]
SAMPLES = [NEW, ALL_TO_ALL, JSON, inspector(0, 5) + "\n" + inspector(1, 7), OSU.replace("Reduce-scatter", "Allgather")]


def test_a_table_of_nccl_tests_gives_both_times_of_each_size_and_the_ranks():
    log = collective_log(NEW)
    assert (log.program, log.ranks, log.nodes, log.devices) == ("nccl-tests", 8, 2, ("NVIDIA H100",))
    assert [(row.kind, row.bytes, row.seconds, row.in_place, row.item_bytes) for row in log.rows] == [
        ("all_reduce", 2**20, pytest.approx(50e-6), False, 4),
        ("all_reduce", 2**20, pytest.approx(48e-6), True, 4),
        ("all_reduce", 2**24, pytest.approx(200e-6), False, 4),
        ("all_reduce", 2**24, pytest.approx(1e-3), True, 4),
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nccl_alltoall.log", "all_to_all"), ("sendrecv_perf.txt", "send_receive"), ("run.log", None), ("", None)],
)
def test_the_name_of_the_file_tells_a_collective_that_the_columns_do_not(name, kind):
    assert {row.kind for row in collective_log(ALL_TO_ALL, name).rows} == {kind}


@pytest.mark.parametrize(
    "line", ["$ mpirun -np 8 ./build/alltoall_perf -b 8", "# Collective test starting: alltoall_perf"]
)
def test_the_program_tells_the_collective(line):
    assert {row.kind for row in collective_log(f"{line}\n{ALL_TO_ALL}").rows} == {"all_to_all"}


def test_json_of_nccl_tests():
    log = collective_log(JSON)
    assert (log.ranks, log.nodes, log.library) == (4, 1, "NCCL 22703")
    assert [(row.kind, row.bytes, row.seconds, row.in_place, row.item_bytes) for row in log.rows] == [
        ("all_gather", 64, pytest.approx(12.5e-6), False, 2),
        ("all_gather", 64, pytest.approx(11e-6), True, 2),
    ]


def test_of_the_ranks_of_nccl_inspector_the_slowest_counts_and_parts_become_the_whole_buffer():
    log = collective_log("\n".join([inspector(0, 5), inspector(1, 7), inspector(2, 6)]))
    assert (log.ranks, log.nodes) == (8, 2)
    assert log.rows == (MeasuredCollective("reduce_scatter", 8192, pytest.approx(7e-6)),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (inspector(0, -1), "line 1: time -1 us"),
        (inspector(0, 5) + "\n" + inspector(0, 5, ranks=4), "communicators of several sizes"),
        (inspector(0, 5).replace("ReduceScatter", "Dance"), "collective 'Dance'"),
        (
            inspector(0, 5).replace('"coll_sn": 7', '"coll_sn": [7]'),
            "line 1: coll_sn \\[7\\]: a text or a number is needed",
        ),
        (JSON.replace('"rank": 2', '"rank": [2]'), r"config.devices\[2\].rank \[2\]: a whole number from 0 is needed"),
        ('{"results": 3}', "'results' is missing"),
        (NEW.replace("50.00", "0.000"), "time 0 us"),
    ],
)
def test_a_fault_is_named_with_its_place(text, words):
    with pytest.raises(InputError, match=words):
        collective_log(text)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_log_ends_in_rows_or_in_one_line(text, data):
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 40)))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", "-1", "1e999", "é", "[" * 50, "nan", "{", "\n", "9" * 30]))
            + text[end:]
        )
    try:
        log = collective_log(text)
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
    else:
        assert all(0 < row.seconds < 1e7 and row.bytes > 0 for row in log.rows)


@pytest.mark.parametrize(
    "text",
    [
        "# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n" + "9" * 5000 + "  3.2\n",
        "#  size  count  type  redop  root\n" + "9" * 5000 + "  256  float  sum  -1  9 0.1 0.2 0 9 0.1 0.2 0\n",
    ],
    ids=["OSU", "nccl-tests"],
)
def test_a_size_of_thousands_of_digits_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="a size of at most 18 digits is accepted"):
        collective_log(text)
