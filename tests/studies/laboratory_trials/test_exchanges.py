"""What the trial of exchanges tries: settings as words of mpirun, chunks as flags of a run, groups of two ranks."""

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.studies.laboratory_trials import rings
from quadrille.studies.laboratory_trials.exchanges import (
    COLUMNS,
    DEFAULTS,
    GRIDS,
    IN_A_ROW,
    OPS,
    SETTINGS,
    Remedy,
    main,
    options,
    remedies,
)

EVERY = [remedy for setting in SETTINGS for remedy in remedies(setting)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_passed_to_mpirun_as_one_parameter_of_its_tcp_connections(setting):
    words = options(setting)
    if setting == DEFAULTS:
        assert words == []
        return
    option, name, value = words
    assert option == "--mca" and f"{name}={value}" == setting and name.startswith("btl_tcp_") and value


def test_every_remedy_is_tried_once_and_whole_messages_with_every_setting():
    assert len(set(EVERY)) == len(EVERY)
    assert all(remedies(setting)[0] == Remedy(setting, 0) for setting in SETTINGS)


@pytest.mark.parametrize("remedy", EVERY)
def test_steps_and_collectives_cut_messages_equally(remedy):
    case = remedy.case(Grid(x=2, z=2), "unused.json")
    assert case.options.chunk_bytes == remedy.message_options.chunk_bytes


def test_a_row_has_a_field_for_each_column():
    row = Remedy("btl_tcp_links=2", 61440).row(4, "1 all_gather", "share_of_rate", [0.5, 0.9, 0.7], 0.25)
    found = dict(zip(COLUMNS.split(), row, strict=True))
    assert (found["median"], found["lowest"], found["highest"]) == ("0.700", "0.500", "0.900")
    assert (found["open_mpi"], found["chunk_bytes"], found["measured"]) == ("btl_tcp_links=2", "61440", "1 all_gather")


@pytest.mark.parametrize("hosts", GRIDS)
@pytest.mark.parametrize(("op", "times"), [*OPS, IN_A_ROW])
def test_every_rank_sends_to_one_other_as_much_as_it_receives(hosts, op, times):
    grid = GRIDS[hosts]
    assert (grid.size, grid.length(op.axis)) == (hosts, 2)
    one = rings.schedule(op, 64, grid, times=times)
    zeros = {name: np.zeros((one.sizes["e"], 1), "float32") for name in one.inputs}
    found = execute(one, zeros, InProcess(grid.size))
    exchanges = 2 if op is OPS[-1][0] else times
    assert set(found.bytes_sent.values()) == {exchanges * 32}


@pytest.mark.parametrize("words", [("3",), ("4", "2"), ("",)])
def test_hosts_that_are_no_pairs_are_refused(words):
    with pytest.raises(InputError, match="accepted are 2, 4"):
        main(*words)
