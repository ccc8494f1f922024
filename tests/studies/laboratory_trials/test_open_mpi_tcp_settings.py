"""What the trial of exchanges tries: settings as words of mpirun, chunks as flags of a run, groups of two ranks."""

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.studies.laboratory_trials import collective_rates
from quadrille.studies.laboratory_trials.open_mpi_tcp_settings import (
    COLUMNS,
    DEFAULTS,
    FOUR_GATHERS,
    GRIDS,
    OPS,
    SETTINGS,
    TcpSetting,
    main,
    mpirun_options,
    tcp_settings,
)

EVERY = [tcp_setting for setting in SETTINGS for tcp_setting in tcp_settings(setting)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_passed_to_mpirun_as_one_parameter_of_its_tcp_connections(setting):
    words = mpirun_options(setting)
    if setting == DEFAULTS:
        assert words == []
        return
    option, name, value = words
    assert option == "--mca" and f"{name}={value}" == setting and name.startswith("btl_tcp_") and value


def test_every_remedy_is_tried_once_and_whole_messages_with_every_setting():
    assert len(set(EVERY)) == len(EVERY)
    assert all(tcp_settings(setting)[0] == TcpSetting(setting, 0) for setting in SETTINGS)


@pytest.mark.parametrize("tcp_setting", EVERY)
def test_steps_and_collectives_cut_messages_equally(tcp_setting):
    case = tcp_setting.case(Grid(x=2, z=2), "unused.json")
    assert case.options.chunk_bytes == tcp_setting.message_options.chunk_bytes


def test_a_row_has_a_field_for_each_column():
    row = TcpSetting("btl_tcp_links=2", 61440).row(4, "1 all_gather", "share_of_rate", [0.5, 0.9, 0.7], 0.25)
    found = dict(zip(COLUMNS.split(), row, strict=True))
    assert (found["median"], found["lowest"], found["highest"]) == ("0.700", "0.500", "0.900")
    assert (found["open_mpi"], found["chunk_bytes"], found["measured"]) == ("btl_tcp_links=2", "61440", "1 all_gather")


@pytest.mark.parametrize("hosts", GRIDS)
@pytest.mark.parametrize(("op", "times"), [*OPS, FOUR_GATHERS])
def test_every_rank_sends_to_one_other_as_much_as_it_receives(hosts, op, times):
    grid = GRIDS[hosts]
    assert (grid.size, grid.length(op.axis)) == (hosts, 2)
    one = collective_rates.collective_schedule(op, 64, grid, times=times)
    zeros = {name: np.zeros((one.sizes["e"], 1), "float32") for name in one.inputs}
    found = execute(one, zeros, InProcess(grid.size))
    exchanges = 2 if op is OPS[-1][0] else times
    assert set(found.bytes_sent.values()) == {exchanges * 32}


@pytest.mark.parametrize("words", [("3",), ("4", "2"), ("",)])
def test_hosts_that_are_no_pairs_are_refused(words):
    with pytest.raises(InputError, match="accepted are 2, 4"):
        main(*words)
