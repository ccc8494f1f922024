import json
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record, save_record
from quadrille.algorithms.formats.renamed_keys import Renames
from quadrille.algorithms.formats.timeline_files import load_timeline, save_timeline
from quadrille.algorithms.timelines.spans import RepeatedIterations, Span
from quadrille.algorithms.timelines.timeline import Timeline

RENAMES = Renames({"a.old": "b.new", "a.rows[].of": "a.rows[].size", "a.gone": None})


def test_what_is_upgraded_and_downgraded_is_the_old_content_without_dropped_keys():
    old = {"a": {"old": 1, "gone": 2, "rows": [{"of": 3}, {"of": 4, "x": 5}]}}
    new = {"a": {"rows": [{"size": 3}, {"size": 4, "x": 5}]}, "b": {"new": 1}}
    assert RENAMES.upgraded(old) == new
    assert RENAMES.downgraded(new) == {"a": {"old": 1, "rows": [{"of": 3}, {"of": 4, "x": 5}]}}
    assert old["a"]["gone"] == 2, "the content given stays as it was"


@pytest.mark.parametrize(("word", "is_known"), [("x", True), ("y", False), (3, False), (None, False), (["x"], False)])
def test_a_word_with_another_meaning_becomes_other_keys_and_other_values_stay(word, is_known):
    renames = Renames({}, {"rows[].how": {"x": {"how": "y", "why": "z"}}})
    row = {"how": "y", "why": "z"} if is_known else {"how": word}
    assert renames.upgraded({"rows": [{"how": word}, {}]}) == {"rows": [row, {}]}


@pytest.mark.parametrize("content", [{"a": 7}, {"a": {"rows": 3}}, {"a": {"rows": [3]}}, {"a": None}, {}])
def test_values_of_the_wrong_type_stay_for_the_check_that_follows(content):
    assert RENAMES.upgraded(content) == content


def test_a_timeline_of_version_1_is_the_same_timeline(tmp_path):
    last = Span(0, "multiply", "gemm", "compute", ready=6, start=6, arrival=6, end=8, index=3)
    timeline = Timeline((last,), "predicted", 1, repeated=(RepeatedIterations(6.0, 2.0, 3, {"multiply": 1}),))
    path = tmp_path / "timeline.json"
    save_timeline(timeline, path)
    raw = json.loads(path.read_text())
    assert raw["schema"] == "quadrille/timeline/2"
    (repeated,) = raw.pop("repeated")
    raw["turns"] = [
        {"turn_seconds" if key == "iteration_seconds" else "per_turn" if key == "per_iteration" else key: value}
        for key, value in repeated.items()
    ]
    raw["turns"] = [{key: value for entry in raw["turns"] for key, value in entry.items()}]
    path.write_text(json.dumps(raw | {"schema": "quadrille/timeline/1"}))
    assert load_timeline(path) == timeline


@pytest.mark.parametrize(
    "golden_record", sorted((Path(__file__).parents[2] / "golden/records").glob("*.json")), ids=lambda path: path.name
)
def test_a_record_of_version_1_is_written_again_as_version_2(tmp_path, golden_record):
    path = tmp_path / "record.json"
    save_record(load_record(golden_record), path)
    again = json.loads(path.read_text())
    assert again["schema"] == "quadrille/record/2"
    assert load_record(path) == load_record(golden_record)
    assert "why_not" not in json.dumps(again)


@pytest.mark.parametrize(
    ("before", "now"),
    [("none", ("unfused", "none")), ("selective", ("fused", "none")), ("full", ("fused", "full"))],
)
def test_recomputation_in_a_record_of_version_1_is_read_as_it_was_meant(tmp_path, before, now):
    raw = json.loads((Path(__file__).parents[2] / "golden/records/predicted-gpt.json").read_text())
    raw["options"]["recompute"] = before
    path = tmp_path / "record.json"
    path.write_text(json.dumps(raw))
    options = load_record(path).options
    assert (options.attention, options.recompute) == now


def test_an_unknown_word_in_a_record_of_version_1_is_refused(tmp_path):
    raw = json.loads((Path(__file__).parents[2] / "golden/records/predicted-gpt.json").read_text())
    raw["options"]["recompute"] = "some"
    path = tmp_path / "record.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"options\.recompute"):
        load_record(path)
