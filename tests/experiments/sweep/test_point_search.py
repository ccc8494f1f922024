"""`sweep --search`: nearly the best point from a tenth of the points, and only accepted points are best."""

import json
from itertools import product
from operator import le
from random import Random

import pytest
from msgspec.structs import replace

from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.report.report import parts_of_files
from quadrille.experiments.sweep import point_search
from quadrille.experiments.sweep.point_search import SearchOptions, best_places, search_points
from quadrille.experiments.sweep.sweep import SweepDescription, search_sweep
from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.experiments.sweep.varied_key import VariedKey
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.quadrille import called
from tests.support.toy_machines import star

pytest.importorskip("optuna")
LENGTHS = (10, 6, 3, 3)
KEYS = [VariedKey(f"key{n}", tuple(f"value{m}" for m in range(length))) for n, length in enumerate(LENGTHS)]


@pytest.fixture
def toy_words(tmp_path):
    """The words of a sweep of 12 points of a small machine."""
    machine = tmp_path / "toy.toml"
    save_machine(star(16, memory=1e10), machine)
    return ["sweep", "--matmul", "96,64,48", "--machine", machine, "--vary", "grid=x=2;z=2;x=4;z=4;y=2;y=4",
            "--vary", "dtype=float32,float64"]  # fmt: skip


def product_of_factors(seed=2):
    """Answers whose time is a product of a factor for each value and for each pair of neighbouring keys' values."""
    draw, pairs = Random(seed), {}
    factors = [[draw.uniform(1, 2) for _ in range(length)] for length in LENGTHS]
    answers = []
    for point in product(*map(range, LENGTHS)):
        seconds = 1.0
        for key, value in enumerate(point):
            seconds *= factors[key][value]
            if key:
                seconds *= pairs.setdefault((key, point[key - 1], value), draw.uniform(1, 1.5))
        answers.append(SweepAnswer(seconds=seconds, ranks=8 * (1 + point[0]), peak_bytes_per_rank_max=100 - point[1]))
    return answers


@pytest.mark.parametrize("table_seed", [2, 3])
def test_a_search_of_a_tenth_of_the_points_is_within_two_per_cent_of_the_best(table_seed):
    table = product_of_factors(table_seed)
    count, least = len(table) // 10, min(answer.seconds for answer in table)
    for seed in range(4):
        options = SearchOptions(points=count, seed=seed)
        answers = search_points(KEYS, lambda places: [table[place] for place in places], options)
        assert len(answers) == count
        assert answers[best_places(answers, options)[0]].seconds <= 1.02 * least


def valley(offset, length=16):
    """Answers whose time is small only where the second key is the first plus an offset, and varies along this line."""
    return [
        SweepAnswer(seconds=1 + 0.3 * abs(row - (column + offset) % length) + 0.02 * abs(column - 5) + 0.1 * kind)
        for row, column, kind in product(range(length), range(length), range(3))
    ]


@pytest.mark.parametrize("offset", [4, 10])
def test_a_search_follows_a_narrow_valley(offset):
    """No change of one key leads along the valley, beside which the time is 30 % longer for each step."""
    table = valley(offset)
    keys = [*(VariedKey(key, tuple(map(str, range(16)))) for key in ("row", "column")), VariedKey("c", ("a", "b", "c"))]
    distances = []
    for seed in range(6):
        options = SearchOptions(points=len(table) // 10, seed=seed)
        answers = search_points(keys, lambda places: [table[place] for place in places], options)
        distances.append(answers[best_places(answers, options)[0]].seconds - 1)
    assert max(distances) <= 0.06 and min(distances) <= 0.02


def test_neighbours_have_the_nearest_values_first_and_those_of_the_best_point_first():
    keys = [
        VariedKey("bands", ("4", "1", "2")),
        VariedKey("grid", ("x=8", "x=4,y=2", "y=8")),
        VariedKey("c", ("a", "b")),
    ]
    points = list(product(*(key.values for key in keys)))
    answered = [(("1", "x=8", "a"), 1.0, 9), (("2", "x=4,y=2", "b"), 2.0, 8), (("2", "x=8", "b"), 3.0, 9)]
    answers = {
        points.index(point): SweepAnswer(seconds=seconds, peak_bytes_per_rank_max=peak)
        for point, seconds, peak in answered
    }
    answers |= {points.index(("4", "y=8", value)): SweepAnswer(reason="none") for value in ("a", "b")}
    answers |= {points.index(("4", "x=8", value)): SweepAnswer(reason="none") for value in ("a", "b")}
    answers[points.index(("1", "y=8", "b"))] = SweepAnswer(reason="none")
    options = SearchOptions(objectives=("time", "memory"), points=9)
    search = point_search._Search(keys, lambda places: [], options, answers)
    assert [points[place] for place in search._neighbours()] == [
        ("1", "x=8", "b"), ("1", "x=4,y=2", "a"), ("2", "x=8", "a"),
        ("4", "x=4,y=2", "b"), ("1", "x=4,y=2", "b"), ("2", "x=4,y=2", "a"),
        ("1", "y=8", "a"), ("2", "y=8", "b"),
    ]  # fmt: skip


def test_a_search_of_several_objectives_finds_most_of_the_front():
    table = product_of_factors()
    options = SearchOptions(objectives=("time", "gpus"), points=len(table) // 10)
    answers = search_points(KEYS, lambda places: [table[place] for place in places], options)
    front = best_places(dict(enumerate(table)), options)
    assert len(set(best_places(answers, options)) & set(front)) >= 0.5 * len(front)


def test_a_small_budget_has_smaller_groups():
    for points, size in ((40, 4), (100, 6), (136, 8)):
        groups = []
        table = product_of_factors()

        def answer(places, table=table, groups=groups):
            groups.append(len(places))
            return [table[place] for place in places]

        search_points(KEYS, answer, SearchOptions(points=points))
        assert set(groups[:-1]) == {size}


def test_a_search_finds_points_that_fit_where_few_do():
    """A fifth of the points have enough memory, and the fastest of all points need the most."""
    table = []
    for answer in product_of_factors():
        peak = 100 / answer.seconds
        table.append(SweepAnswer(seconds=answer.seconds, peak_bytes_per_rank_max=peak, fits=None))
    limit = sorted(answer.peak_bytes_per_rank_max for answer in table)[len(table) // 5]
    table = [replace(answer, fits=answer.peak_bytes_per_rank_max <= limit) for answer in table]
    least = min(answer.seconds for answer in table if answer.fits)
    options = SearchOptions(points=len(table) // 10, seed=1)
    answers = search_points(KEYS, lambda places: [table[place] for place in places], options)
    assert answers[best_places(answers, options)[0]].seconds <= 1.02 * least


def test_processes_that_share_a_search_ask_the_same_points(tmp_path):
    table = product_of_factors()
    points = [({key.key: key.values[0] for key in KEYS}, place) for place in range(len(table))]
    results = [
        search_sweep(
            points, SweepDescription(varied=KEYS), SearchOptions(points=24),
            Destinations(json=str(tmp_path / "s.json")), options=TaskOptions(jobs=jobs), question=table.__getitem__,
        )
        for jobs in (1, 2)
    ]  # fmt: skip
    assert results[0].points == results[1].points and results[0].heading == "24 of 540 points, predicted"
    assert {row.speedup for row in results[0].points} == {None}


def test_all_points_are_asked_if_they_fit_the_budget():
    table = product_of_factors()
    for options in (SearchOptions(points=len(table)), SearchOptions(seconds=1e6), SearchOptions()):
        answers = search_points(KEYS, lambda places: [table[place] for place in places], options)
        assert len(answers) == len(table)


def test_best_points_fit_and_none_is_better_in_all_objectives():
    options = SearchOptions(objectives=("time", "memory"), most_gpus=64)
    rows = {
        0: SweepAnswer(seconds=1.0, peak_bytes_per_rank_max=9, ranks=128),
        1: SweepAnswer(seconds=1.0, peak_bytes_per_rank_max=9, ranks=8, fits=False),
        2: SweepAnswer(reason="none"),
        3: SweepAnswer(seconds=4.0, peak_bytes_per_rank_max=5, ranks=64),
        4: SweepAnswer(seconds=2.0, peak_bytes_per_rank_max=9, ranks=64),
        5: SweepAnswer(seconds=4.0, peak_bytes_per_rank_max=6, ranks=64),
    }
    assert best_places(rows, options) == [4, 3]


def test_a_search_on_the_command_line_names_the_best_point_and_is_kept(tmp_path, capsys):
    machine, store = tmp_path / "toy.toml", tmp_path / "s.sqlite"
    save_machine(star(16, memory=1e10), machine)
    words = ["sweep", "--matmul", "96,64,48", "--machine", machine, "--vary", "grid=x=2;z=2;x=4;z=4;y=2;y=4",
             "--vary", "dtype=float32,float64", "--search", "time", "--most-gpus", "2"]  # fmt: skip
    ended = called(capsys, *words, "--budget", "9", "--store", store)
    assert ended.status == 0 and "quadrille: best of 9 of 12 points: " in ended.err
    best = next(line for line in ended.err.splitlines() if "best of" in line)
    assert "=4, " not in best and f"0 of 9 points were in {store}" in ended.err
    again = called(capsys, *words, "--budget", "9", "--store", store)
    assert again.out == ended.out and f"9 of 9 points were in {store}" in again.err


def test_an_interrupted_search_writes_the_answers_so_far(tmp_path):
    varied = [VariedKey("gpus", tuple(map(str, range(1, 33))))]

    def answer(gpus):
        if gpus > 10:
            raise KeyboardInterrupt
        return SweepAnswer(seconds=1 / gpus, ranks=gpus)

    points = [({"gpus": str(gpus)}, gpus) for gpus in range(1, 33)]
    table = tmp_path / "points.csv"
    with pytest.raises(KeyboardInterrupt):
        search_sweep(
            points, SweepDescription(flags={}, varied=varied), SearchOptions(), Destinations(csv=str(table)),
            question=answer,
        )  # fmt: skip
    assert [line.split(",")[0] for line in table.read_text().splitlines()[1:]] == [str(gpus) for gpus in range(1, 11)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--search", "speed"], "--search 'speed': accepted are time, memory, gpus"),
        (["--search", "time", "--budget", "many"], "--budget 'many': a number of points, such as 200, or of seconds"),
        (["--search", "time", "--budget", "1h"], "--budget '1h': a number of points, such as 200, or of seconds"),
        (["--search", "time", "--budget", "-5s"], "--budget '-5s': a number of points, such as 200, or of seconds"),
        (["--search", "time", "--budget", "0s"], "--budget '0s': a number of points, such as 200, or of seconds"),
        (["--search", "time", "--budget", "1e9s"], "--budget '1e9s': a number of points, such as 200, or of seconds"),
        (["--budget", "9"], "--budget 9: --search OBJECTIVE,… is needed"),
        (["--search-seed", "9"], "--search-seed 9: --search OBJECTIVE,… is needed"),
        (["--search", "time", "--search-seed", "4294967296"], "a whole number from 0 to 4294967295 is accepted"),
        (["--search", "time", "--most-gpus", "1"], "none of the 1 points that --search asked for is accepted"),
    ],
)
def test_words_of_a_search_that_are_not_accepted(tmp_path, capsys, words, reason):
    machine = tmp_path / "toy.toml"
    save_machine(star(16, memory=1e10), machine)
    ended = called(capsys, "sweep", "--matmul", "8,8,8", "--machine", machine, "--vary", "grid=x=2", *words)
    assert ended.status == 2 and reason in ended.line


def test_a_search_learns_from_stored_answers_and_names_the_best_of_all(toy_words, tmp_path, capsys):
    """A sweep of all points fills the store; a search of fewer points then asks none, and names the same best."""
    store = tmp_path / "s.sqlite"
    assert called(capsys, *toy_words, "--store", store).status == 0
    whole = called(capsys, *toy_words, "--search", "time")
    ended = called(capsys, *toy_words, "--search", "time", "--budget", "2", "--store", store)
    assert f"12 of 12 points were in {store}" in ended.err
    assert best_lines(ended) == best_lines(whole) and ended.out == whole.out and "speed-up" in ended.out


@pytest.mark.parametrize("objectives", ["memory", "time,memory"])
def test_json_and_report_of_a_search_name_the_best_points_by_its_objectives(toy_words, tmp_path, capsys, objectives):
    path = tmp_path / "search.json"
    assert called(capsys, *toy_words, "--search", objectives, "--json", path).status == 0
    answer = json.loads(path.read_text())
    rows, search = answer["rows"], answer["search"]
    assert (search["objectives"], search["combinations"]) == (objectives.split(","), 12)
    names = {"time": "seconds", "memory": "peak_bytes_per_rank_max"}
    values = [tuple(row["answer"][names[objective]] for objective in objectives.split(",")) for row in rows]
    front = {value for value in values if not any(all(map(le, each, value)) and each != value for each in values)}
    assert {values[place] for place in search["best"]} == front
    (part,) = parts_of_files([str(path)])
    words = " ".join([part.verdict, *part.lines])
    first = rows[search["best"][0]]["point"]
    assert words.startswith("The search answered 12 of 12 points; ")
    assert f"grid={first['grid']}, dtype={first['dtype']}: " in words
    assert called(capsys, *toy_words, "--json", path).status == 0
    assert "search" not in json.loads(path.read_text())


def test_a_search_asks_no_more_than_its_budget_beside_the_stored_answers(toy_words, tmp_path, capsys):
    store = tmp_path / "s.sqlite"
    some = [str(word).replace("x=2;z=2;", "z=2;") for word in toy_words]
    assert called(capsys, *some, "--store", store).status == 0
    ended = called(capsys, *toy_words, "--search", "time", "--budget", "11", "--store", store)
    assert f"10 of 11 points were in {store}" in ended.err and "speed-up" not in ended.out


def test_a_stored_answer_is_never_asked_and_is_told_to_the_optimiser():
    """All points but a tenth are stored; the search asks among the others, and its best is the best of all."""
    table = product_of_factors()
    stored = {place: answer for place, answer in enumerate(table) if place % 10}
    asked_places = []

    def answer(places):
        asked_places.extend(places)
        return [table[place] for place in places]

    options = SearchOptions(points=len(stored) + 8)
    answers = search_points(KEYS, answer, options, stored)
    assert len(asked_places) == 8 and not set(asked_places) & set(stored)
    lacking = sorted(answer.seconds for place, answer in enumerate(table) if place not in stored)
    assert min(table[place].seconds for place in asked_places) == lacking[0]
    assert best_places(answers, options) == [min(range(len(table)), key=lambda place: table[place].seconds)]


def test_more_stored_answers_than_optuna_is_told_still_count(monkeypatch):
    table = product_of_factors()
    monkeypatch.setattr(point_search, "MOST_STORED_ANSWERS", 5)
    stored = dict(enumerate(table[:200]))
    answers = search_points(KEYS, lambda places: [table[place] for place in places], SearchOptions(points=210), stored)
    assert len(answers) == 210 and set(stored) < set(answers)


def best_lines(ended):
    """The lines that name the best points, without the number of points."""
    return [line.partition(" points: ")[2] for line in ended.err.splitlines() if "best of" in line]
