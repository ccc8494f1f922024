import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import Record, load_record, provenance, save_record

EXAMPLE = json.loads("""
{"schema": "quadrille/record/2", "kind": "predicted",
 "workload": {"matmul": {"m": 4096, "k": 4096, "n": 4096}}, "dtype": "float32", "passes": "forward",
 "algorithm": "4d", "grid": {"data": 1, "z": 2, "y": 2, "x": 2}, "order": ["x", "y", "z", "data"], "ranks": 8,
 "options": {"overlap": [], "gathered": "again", "collectives": "own:ring"}, "backend": "numpy",
 "machine": {"name": "host", "sha256": "…"},
 "seconds": 0.0123, "seconds_low": 0.0119, "seconds_high": 0.0131, "repeats": 1,
 "flops_per_rank_max": 17179869184, "bytes_sent_per_rank_max": 25165824, "bytes_sent_total": 201326592,
 "bytes_lower_bound_per_rank": null, "peak_bytes_per_rank_max": 100663296,
 "ops": [{"name": "gather B", "kind": "all_gather", "axis": "z", "algorithm": "ring", "count": 1,
          "bytes_sent_per_rank_max": 8388608, "bytes_sent_total": 67108864,
          "seconds": 0.0021, "waiting_seconds": 0.0, "exposed_seconds": 0.0021, "extrapolated": false}],
 "reference": null, "verified": null,
 "provenance": {"command": "…", "date": "…", "host": "…", "versions": {}}}
""")


def file_with(folder, content):
    path = folder / "record.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def changed(*steps_and_value):
    """The example with one value changed."""
    *steps, last, value = steps_and_value
    raw = json.loads(json.dumps(EXAMPLE))
    place = raw
    for step in steps:
        place = place[step]
    place[last] = value
    return raw


@pytest.fixture
def record(tmp_path):
    return load_record(file_with(tmp_path, EXAMPLE))


def test_the_record_of_the_design_page_is_read(record):
    assert record.ranks == 8
    assert record.workload.matmul.k == 4096
    assert record.ops[0].seconds == 0.0021


def test_a_written_record_holds_every_key_of_the_design_page_in_its_order(record, tmp_path):
    save_record(record, tmp_path / "again.json")
    written = json.loads((tmp_path / "again.json").read_text())
    assert [key for key in written if key in EXAMPLE] == list(EXAMPLE)
    assert {key: written[key] for key in EXAMPLE if key not in ("options", "ops")} == {
        key: EXAMPLE[key] for key in EXAMPLE if key not in ("options", "ops")
    }
    assert load_record(tmp_path / "again.json") == record


def test_a_record_written_twice_is_the_same_file(record, tmp_path):
    for name in ("one", "two"):
        save_record(record, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@given(st.floats(0, 1e12), st.lists(st.floats(1e-300, 1e12), max_size=3))
def test_times_survive_the_file_to_the_last_bit(tmp_path_factory, seconds, gemm_seconds):
    path = tmp_path_factory.getbasetemp() / "times.json"
    raw = {**EXAMPLE, "seconds": seconds, "reference": {"gemm_seconds": gemm_seconds}}
    raw.pop("schema")
    record = msgspec.convert(raw, Record)
    save_record(record, path)
    assert load_record(path) == record


def test_numbers_of_numpy_are_written_as_numbers(record, tmp_path):
    save_record(msgspec.structs.replace(record, seconds=np.float64(0.5), ranks=np.int64(8)), tmp_path / "r.json")
    assert load_record(tmp_path / "r.json").seconds == 0.5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (changed("ranks", 0), ["ranks = 0", "int >= 1"]),
        (changed("ranks", 6), ["ranks = 6", "data=1,z=2,y=2,x=2 has 8"]),
        (changed("ranks", 8.5), ["ranks = 8.5", "int"]),
        (changed("seconds", "fast"), ["seconds = 'fast'", "float"]),
        (changed("seconds", -1), ["seconds = -1", "float >= 0"]),
        (changed("dtype", "float31"), ["dtype = 'float31'", "float32, float64"]),
        (changed("grid", "w", 2), ["grid.w is unknown", "data", "x"]),
        (changed("grid", "z", -2), ["grid.z = -2", "int >= 1"]),
        (changed("order", ["x", "x", "z", "y"]), ["order = x,x,z,y", "once"]),
        (changed("workload", "matmul", "m", 0), ["workload.matmul.m = 0"]),
        (changed("workload", {}), ["workload names one of matmul"]),
        (changed("ops", 0, "colour", "red"), ["ops[0].colour is unknown", "waiting_seconds"]),
        (changed("ops", 0, {"name": "a"}), ["ops[0].kind is missing"]),
        (changed("ops", 0, "seconds_by_part", {"magic": 1.0}), ["ops[0].seconds_by_part.magic", "compute", "latency"]),
        (changed("ops", 3), ["ops = 3", "array"]),
        (changed("schema", "quadrille/record/3"), ["quadrille/record/3", "newer", "quadrille/record/2"]),
        (changed("schema", "quadrille/machine/1"), ["quadrille/machine/1", "quadrille/record/2 is accepted"]),
        (changed("schema", 7), ["7", "quadrille/record/2 is accepted"]),
        ({}, ["names no schema", "quadrille/record/2"]),
        ([1, 2], ["[1, 2]", "schema"]),
        ("", ["truncated"]),
        (json.dumps(EXAMPLE)[:700], ["truncated"]),
        ("hello", ["JSON"]),
        (json.dumps(EXAMPLE).replace("0.0123", "NaN"), ["JSON"]),
        (json.dumps(EXAMPLE).replace("0.0123", "1e999"), ["range"]),
        ("[" * 100000, ["record.json"]),
    ],
)
def test_a_file_that_holds_no_record_is_refused_in_one_line(tmp_path, content, words):
    path = file_with(tmp_path, content)
    with pytest.raises(InputError) as refused:
        load_record(path)
    message = str(refused.value)
    assert "\n" not in message
    assert all(word in message for word in ["record.json", *words]), message


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path, word in (
        (tmp_path / "none.json", "does not exist"),
        (tmp_path, "cannot be read"),
        (tmp_path / "binary.json", "text"),
    ):
        with pytest.raises(InputError, match=word):
            load_record(path)


def test_a_number_that_is_not_finite_is_not_written(record, tmp_path):
    target = tmp_path / "r.json"
    with pytest.raises(InputError, match="seconds = nan"):
        save_record(msgspec.structs.replace(record, seconds=float("nan")), target)
    assert not list(tmp_path.glob("r.json*"))


@pytest.mark.parametrize("target", ["no/such/folder/r.json", "."])
def test_an_unwritable_path_is_refused_before_and_at_writing(record, tmp_path, target):
    for attempt in (
        lambda: schema_files.check_writable(tmp_path / target),
        lambda: save_record(record, tmp_path / target),
    ):
        with pytest.raises(InputError, match="cannot be written"):
            attempt()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(record, tmp_path, monkeypatch):
    path = file_with(tmp_path, "old")

    def full(*arguments, **folders):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        save_record(record, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_through_a_link_keeps_the_link_and_the_permissions(record, tmp_path):
    path = file_with(tmp_path, "old")
    path.chmod(0o640)
    (tmp_path / "link.json").symlink_to(path)
    save_record(record, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load_record(path) == record
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_dash_is_stdout_and_a_device_is_written_in_place(record, capsys):
    save_record(record, "-")
    assert json.loads(capsys.readouterr().out)["schema"] == "quadrille/record/2"
    save_record(record, "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_provenance_names_command_date_host_and_versions():
    made = provenance(["quadrille", "run", "--a", "a b.npy", "\udcff"])
    assert made.command.startswith("quadrille run --a 'a b.npy'")
    assert made.command.encode()
    assert made.date.endswith("+00:00")
    assert made.versions["numpy"] == np.__version__
    assert made.host
