"""The distances of searches from the best of a table, and the committed results."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.studies.search_quality.study import RESULTS, SCHEMA, SearchQualities, drawn_share, read_table, shown
from quadrille.studies.search_quality.study import search_quality as measured

pytest.importorskip("optuna")
SEEDS = (0, 7)


def committed():
    return schema_files.read(RESULTS / "2026-11-29.json", SearchQualities, SCHEMA).searches


@pytest.mark.parametrize("name", ["2026-11-29-llama2-7b-h100", "2026-11-29-20b-a100"])
def test_committed_distances_are_those_of_the_tables(name):
    swept = read_table(RESULTS / f"{name}.csv")
    (expected,) = [quality for quality in committed() if quality.table == name and quality.asked == 43]
    again = measured(swept, 43, SEEDS)
    assert again.distances == pytest.approx([expected.distances[seed] for seed in SEEDS], abs=1e-9)
    assert (again.near, again.fitting, again.points) == (expected.near, expected.fitting, expected.points)


def test_the_readme_has_the_committed_results():
    text = (RESULTS.parent / "README.md").read_text()
    for quality in committed():
        assert f"| {' | '.join(shown(quality)[1:])} |" in text


def test_a_search_of_all_points_has_no_distance(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text("grid,zero,recompute,micro_batch,ranks,seconds,peak_bytes_per_rank_max,fits\n"
                    "x=2,0,none,1,2,1.0,9,false\nx=2,0,none,2,2,3.0,9,true\nx=2,0,none,4,,,,\n")  # fmt: skip
    quality = measured(read_table(path), 3, [0])
    assert quality.distances == (0.0,) and (quality.fitting, quality.possible, quality.near) == (1, 2, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("grid,zero\nx=2,0\n", "the column recompute is missing"),
        ("grid,zero,recompute,micro_batch,seconds,fits\nx=2,0,none,1,,\nx=1,0,none,2,,\n", "2 rows; 4, all combin"),
    ],
)
def test_a_table_that_is_no_full_product_is_refused(tmp_path, text, reason):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_table(path)


def test_the_share_of_draws_is_that_of_the_hypergeometric_distribution():
    from math import comb

    assert drawn_share(432, 3, 43) == pytest.approx(1 - comb(429, 43) / comb(432, 43))
