"""Making tables of measured kernels from synthetic measurements."""

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.studies.kernel_tables.make_tables import Measurements, main, table_of

AXES = {"m": (128, 512, 2048), "n": (128, 1024)}


def measured(noise=0.0):
    draw = np.random.default_rng(3)
    sizes = np.exp(draw.uniform(np.log(128), np.log([2048, 1024]), (800, 2)))
    return Measurements(sizes, 0.1 * np.log(sizes[:, 0] / 128) + 0.3 + noise * draw.standard_normal(800))


def test_a_table_follows_its_measurements():
    table = table_of(AXES, measured())
    assert table.rows == 800
    assert table.ratio(512, 300)[0] == pytest.approx(np.exp(0.3 + 0.1 * np.log(4)), rel=0.02)
    assert table.most_error < 0.03


def test_the_errors_are_those_of_measurements_that_were_left_out():
    assert table_of(AXES, measured(noise=0.2)).median_error == pytest.approx(0.13, abs=0.03)


def test_outliers_count_less():
    clean, dirty = measured(), measured()
    dirty.logarithms[::10] += 2.0
    ratios = [table_of(AXES, rows).ratio(512, 300)[0] for rows in (clean, dirty)]
    assert ratios[1] / ratios[0] < 1.06


def test_a_folder_without_measurements_is_refused(tmp_path):
    for name, missing in (("gemm_a100_sxm.csv.gz", "systems.json"), ("systems.json", "attention_a100_sxm.csv.gz")):
        (tmp_path / name).touch()
        with pytest.raises(InputError, match=f"{missing} is missing; a folder with systems.json"):
            main(str(tmp_path))
    with pytest.raises(InputError, match=r"folder ''"):
        main()
