"""Tables of recorded and predicted times."""

from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.studies.megatron_recordings import step_times as module
from quadrille.studies.megatron_recordings.recordings import Recording
from quadrille.studies.megatron_recordings.step_times import KERNELS, StepTimes, error_rows, step_times, time_rows
from tests.support.megatron_steps import SMALL

LARGE = replace(SMALL, layers=32, hidden=4096, heads=32, head_columns=128, key_heads=32, inner=16384)


def test_errors_are_relative_to_the_median_recording():
    times = StepTimes("a", "B200", (1.0, 2.0, 4.0), dict(zip(KERNELS, (1.0, 3.0), strict=True)))
    assert [times.error(kernels) for kernels in KERNELS] == [-0.5, 0.5]
    assert list(time_rows([times])) == [["a", "B200", "3", "1.000 to 4.000", "1.000, -50.0 %", "3.000, +50.0 %", ""]]
    assert [cells[2:] for cells in error_rows([times])][:1] == [["1", "50.0 %", "50.0 %", "50.0 %", "-50.0 %"]]


def test_steps_are_grouped_and_small_models_are_left_out(monkeypatch):
    def seconds(step, gpu, kernels):
        if step.context > 1:
            raise InputError("no context; more")
        return 2.0

    monkeypatch.setattr(module, "predicted_seconds", seconds)
    row = Recording("a, A100", "a", "file", "A100", LARGE, 1.0, 1.0)
    others = replace(row, step=SMALL), replace(row, refused="far"), replace(row, step=replace(LARGE, context=2))
    grouped, refused = step_times([row, replace(row, seconds=3.0), *others])
    assert (grouped.name, grouped.recorded, grouped.error("data sheet")) == ("a", (1.0, 3.0), pytest.approx(0.0))
    assert set(grouped.predicted) == set(KERNELS)
    assert (refused.predicted, refused.reason) == ({}, "no context")
