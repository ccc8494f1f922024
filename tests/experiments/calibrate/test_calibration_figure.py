from pathlib import Path

import numpy as np
import pytest

from quadrille.experiments.calibrate.calibration_figure import calibration_figure, rows_by_conditions
from quadrille.topologies.machines.machine_file import load_machine
from tests.support.quadrille import called

MACHINE = Path(__file__).parents[2] / "golden" / "machines" / "shared-memory.toml"


def test_each_measured_row_is_a_mark_and_residuals_are_those_of_the_machine_file():
    machine = load_machine(MACHINE)
    rates, residuals, memory = calibration_figure(machine).axes
    drawn = sorted(rate for line in rates.lines for rate in line.get_ydata())
    assert drawn == sorted(row.flops_per_second for row in machine.device.gemm)
    assert sum(len(line.get_xdata()) for line in memory.lines) == len(machine.device.memory)
    apart = [abs(value) / 100 for line in residuals.lines[:-1] for value in line.get_ydata()]
    assert len(apart) == len(machine.device.gemm)
    medians = machine.fit.residuals.values()
    assert min(medians) <= np.median(apart) <= max(medians)


def test_conditions_are_told_apart():
    rows = rows_by_conditions(load_machine(MACHINE).device.gemm)
    assert list(rows) == [("float32", 1, 2), ("float32", 2, 1), ("float64", 1, 2), ("float64", 2, 1)]
    assert all(len(of_conditions) == 3 * 36 for of_conditions in rows.values())


@pytest.mark.parametrize(
    ("plot", "message"), [("a.gif", "one of png, svg, pdf"), ("none/a.svg", "none"), ("m.toml", "both name m.toml")]
)
def test_bad_figures_are_refused_before_any_measurement(capsys, plot, message):
    ended = called(capsys, "calibrate", "--out", "m.toml", "--plot", plot)
    assert ended.status == 2
    assert message in ended.line
