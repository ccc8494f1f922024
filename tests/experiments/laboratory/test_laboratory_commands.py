"""What `quadrille lab` refuses before anything stands, and what it tells of what does."""

import json
import re

import msgspec
import pytest

from quadrille.experiments.laboratory.laboratory_commands import LaboratoryList, show_laboratories
from quadrille.runtime.laboratory import laboratory
from quadrille.runtime.laboratory.register import LaboratoryRecord, Register, own_start
from tests.support.quadrille import called


@pytest.fixture(autouse=True)
def nothing_stands(monkeypatch):
    """What is made would be an error."""
    monkeypatch.setattr(laboratory, "up", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("host -n 2 -- run", "'host' has 1 hosts and 0 switches: a laboratory takes 2 to 16"),
        ("host --rate 200mbit -n 2 -- run", "'host' has 1 hosts and 0 switches: a laboratory takes 2 to 16"),
        ("perlmutter:gpus=8 --rate 200mbit -n 2 -- run", "has 8 gpus: a laboratory takes hosts"),
        (
            "star:hosts=4 --rate 200mbit -n 2 -- calibrate --out x.toml",
            "-n 2: calibrate measures between all 4 hosts of star:hosts=4, .*: -n 4 or more is accepted",
        ),
        (
            "star:hosts=4 --rate 200mbit -n 2 -- simulate --matmul 8,8,8",
            "lab run: 'simulate' is neither run, calibrate, rank, sweep nor a program that is found on the path",
        ),
        ("torus:dims=3x3 --rate 200mbit --routing valiant -n 9 -- run", "routing valiant:0: the path from host:"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_stands(capsys, words, said):
    ended = called(capsys, "lab", "run", *words.split())
    assert (ended.status, ended.out) == (2, "")
    assert re.search(said, ended.line)


def test_running_laboratories_are_listed_under_a_schema_and_with_provenance(capsys, tmp_path):
    register, (owner, started) = Register(tmp_path), own_start()
    stays = LaboratoryRecord(
        name="stays",
        topology="star:hosts=2",
        addresses={"host:0": "10.77.0.1"},
        namespaces={"host:0": "quadrille-stays-host0"},
        rates={"host:0>switch:0": 25e6},
    )
    for entry in (stays, msgspec.structs.replace(stays, name="runs", owner=owner, owner_started=started)):
        register.write(entry)
    register.path_of("newer").write_text('{"schema": "quadrille/laboratory/9"}')
    show_laboratories(json="-", command=["quadrille", "lab", "status", "--json", "-"], register=register)
    out, err = capsys.readouterr()
    assert "it is passed over" in err
    told = json.loads(out)
    assert next(iter(told)) == "schema" and told.pop("schema") == "quadrille/laboratories/1"
    found = msgspec.convert(told, LaboratoryList)
    assert found.provenance.command == "quadrille lab status --json -"
    assert [(one.name, one.owner, one.abandoned) for one in found.laboratories] == [
        ("runs", owner, False),
        ("stays", None, False),
    ]
    assert found.laboratories[1].bytes_per_second == stays.rates
