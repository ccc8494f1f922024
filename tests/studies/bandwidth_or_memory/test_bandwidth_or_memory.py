"""The study of resources: more of one is never slower, and twice everything halves a step."""

from dataclasses import replace

import msgspec
import pytest

from quadrille.experiments.sweep.layouts import Layout
from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.experiments.sweep.training_study import StudyOptions
from quadrille.simulator.machine.network import network_of
from quadrille.studies.bandwidth_or_memory import study as resources
from quadrille.topologies.find_machine import find_machine

SMALL = resources.ResourceQuestion(
    machines=("h100-superpod",),
    gpt=("layers=1,hidden=512,heads=8,sequence=256,vocabulary=512",),
    gpus=16,
    each=1,
    options=resources.OPTIONS[:1],
)
EVERYTHING = (
    *(f"{key}=x2" for keys in resources.RESOURCES.values() for key in keys),
    "topology.latency_seconds=x0.5",
    "topology.nvlink_latency_seconds=x0.5",
    "topology.switch_latency_seconds=x0.5",
    "device.overhead_seconds=x0.5",
)


def seconds_of(search):
    """Time of the fastest step of one search [s]."""
    (step,) = resources.fastest_steps(resources.Job({}, {resources.AS_IT_IS: search}))
    return step.seconds


@pytest.fixture(scope="module")
def findings():
    return resources.bandwidth_or_memory(SMALL, StudyOptions(quiet=True, top=1))


def test_every_resource_is_searched_and_memory_is_never_slower(findings):
    assert [row.point["twice"] for row in findings.rows] == list(resources.RESOURCES)
    by_name = {row.point["twice"]: row for row in findings.rows}
    assert resources.gain_of(findings.rows, by_name["peak"]) > 0
    assert resources.gain_of(findings.rows, by_name[resources.AS_IT_IS]) == 0
    for row in findings.rows:
        assert row.answer.remarks[0].startswith("ZeRO ")
        assert row.answer.fits


def test_the_first_layouts_of_each_search_are_candidates_of_every_search():
    """The closed form alone would choose the slower of two layouts where a resource changes their order."""
    job, *_ = resources.jobs_of(replace(SMALL, options=resources.OPTIONS[:2]), StudyOptions(top=1))
    plain = job.searches[resources.AS_IT_IS]
    slow = replace(job.searches[resources.MEMORY], experiments=plain.experiments[1:])  # recomputes all
    both = replace(job, searches={resources.AS_IT_IS: plain, resources.MEMORY: slow})
    of_plain, of_memory = resources.fastest_steps(both)
    (alone,) = resources.fastest_steps(replace(job, searches={resources.AS_IT_IS: slow}))
    assert alone.seconds > of_plain.seconds
    assert of_memory.seconds == of_plain.seconds
    swapped = {resources.AS_IT_IS: slow, resources.MEMORY: replace(plain, machine=slow.machine)}
    assert [step.seconds for step in resources.fastest_steps(replace(job, searches=swapped))] == [of_plain.seconds] * 2


def test_more_of_a_resource_is_never_slower():
    job, *_ = resources.jobs_of(replace(SMALL, options=resources.OPTIONS[:2]), StudyOptions(top=1))
    plain, *more = resources.fastest_steps(job)
    assert len(more) == len(job.searches) - 1
    assert all(step.seconds <= plain.seconds * (1 + 1e-9) for step in more)


def test_a_layout_that_does_not_fit_is_no_candidate_and_the_reason_is_given():
    job, *_ = resources.jobs_of(SMALL, StudyOptions(top=1))
    plain = job.searches[resources.AS_IT_IS]
    small = find_machine("h100-superpod", ["device.memory_bytes=1e6"], gpus=16)
    searches = {resources.AS_IT_IS: replace(plain, machine=small), resources.MEMORY: plain}
    tight, roomy = resources.fastest_steps(replace(job, searches=searches))
    assert tight.seconds is None
    assert "needs at least" in tight.reason
    assert roomy.seconds > 0


def test_a_gain_that_is_missing_is_marked_in_the_figure(findings):
    rows = [
        msgspec.structs.replace(row, answer=SweepAnswer(reason="too large")) if row.point["twice"] == "peak" else row
        for row in findings.rows
    ]
    (axis,) = resources.figure([row for row in rows if row.point["twice"] != "NVLink"]).axes
    assert sorted(text.get_text().strip() for text in axis.texts) == ["not predicted", "the machine has none"]
    assert not resources.figure(findings.rows).axes[0].texts


def test_the_fastest_layout_is_no_slower_than_any_of_its_options_alone():
    job, *_ = resources.jobs_of(replace(SMALL, options=resources.OPTIONS[:2]), StudyOptions(top=1))
    point = job.searches[resources.AS_IT_IS]
    every = seconds_of(replace(point, top=3))
    alone = [seconds_of(replace(point, experiments=(experiment,), top=1)) for experiment in point.experiments]
    assert every <= min(alone) * (1 + 1e-9)


def test_twice_everything_and_half_the_latency_shortens_a_step_by_little_less_than_half():
    experiment = Layout(
        name="data", gpt="layers=1,hidden=2048,heads=16,sequence=1024,vocabulary=512", grid="data=16"
    ).experiment(16)
    seconds = []
    for settings in ((), EVERYTHING):
        machine = find_machine("h100-superpod", settings, gpus=16)
        search = resources.SearchedStep((experiment,), machine, 1, 60.0)
        seconds.append(seconds_of(search))
    assert 0.5 * (1 - 1e-9) <= seconds[1] / seconds[0] < 0.65


def test_only_the_numbers_of_the_resource_change():
    plain, more = (resources.with_twice("h100-superpod", 16, name) for name in (resources.AS_IT_IS, "memory"))
    assert more.topology == plain.topology
    assert more.device.memory_bytes == 2 * plain.device.memory_bytes
    assert more.device.peak_flops_per_second == plain.device.peak_flops_per_second


def test_twice_the_network_is_twice_the_cables_between_nodes_and_the_way_to_the_nic():
    plain, more = (resources.with_twice("h100-superpod", 16, name) for name in (resources.AS_IT_IS, "network"))
    links = [network_of(machine) for machine in (plain, more)]
    for name in ("nic:0>leaf:0", "gpu:0>nic:0", "gpu:0>nvswitch:0"):
        before, after = (float(net.bandwidths[net.link_numbers(name)].sum()) for net in links)
        assert after == pytest.approx(before * (1 if "nvswitch" in name else 2))
