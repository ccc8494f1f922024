"""Context parallelism: trained as the serial run trains it in every form, and cut as its axis says."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import LLAMA, PLAIN
from quadrille.algorithms.training.context import FORMS, find_context_form, natural_rows
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from tests.support.trainings import check_training, schedule_of, total_flops

GROUPED = replace(LLAMA, key_heads=4)
WINDOWS = replace(GROUPED, window=3, global_every=2, local_rotary_base=5.0, score_cap=2.0, qk_norm="head")
EVERY_OVERLAP = ("oar", "ors", "oag")
SCATTERED = find_scheme("megatron", sequence_parallel=True)
ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)


def gpt(form="ring", architecture=GROUPED, *, sequence=8, batch=4, **given):
    given = {"dtype": "float64", "adam": ADAM, "inner": 14, **given}
    return Gpt(2, 32, 8, sequence, 17, batch, architecture=architecture, context_parallel=form, **given)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("grid", "scheme", "options", "overlaps"),
    [
        (Grid(context=4), None, {"architecture": WINDOWS}, ()),
        (Grid(data=2, context=2, z=2, y=2, order=("context", "z", "y")), None, {"batch": 5}, EVERY_OVERLAP),
        (Grid(data=2, context=2, x=2), SCATTERED, {"zero": 1, "micro_batch": 1}, EVERY_OVERLAP),
        (Grid(context=2, x=2), SCATTERED, {"recompute": "full", "dropout": 0.3, "micro_batch": 1, "batch": 3}, ()),
        (Grid(data=2, context=2), None, {"architecture": PLAIN, "zero": 2, "dropout": 0.3}, ()),
        (Grid(data=2, context=2), None, {"zero": 3, "gathered": "keep"}, EVERY_OVERLAP),
        (Grid(pipeline=2, context=2), None, {"micro_batch": 1, "pipeline_schedule": "zb-h1", "zero": 1}, ()),
    ],
    ids=str,
)
def test_every_form_trains_as_the_serial_run_does(form, grid, scheme, options, overlaps):
    check_training(gpt(form, **options), grid, scheme, overlaps=overlaps)


@pytest.mark.parametrize("form", ["ring", "all-gather"])
def test_a_ring_of_three_and_keys_fewer_than_members(form):
    check_training(gpt(form, replace(LLAMA, key_heads=1), sequence=12, dtype="float32"), Grid(context=3))


def test_the_library_exchanges_what_our_own_steps_exchange():
    for form in FORMS:
        check_training(gpt(form, batch=2), Grid(context=2, x=2), find_scheme("megatron"), collectives="library")


# The order of the rows


@pytest.mark.parametrize(("sequences", "context", "chunk"), [(1, 2, 1), (3, 4, 2), (2, 3, 5)])
def test_each_member_holds_a_chunk_and_its_mirror_of_every_sequence(sequences, context, chunk):
    sequence = 2 * context * chunk
    first = 7 * sequence
    stop = first + sequences * sequence
    rows = natural_rows(np.arange(first, stop), first, stop, sequence, context) - first
    assert sorted(rows) == list(range(sequences * sequence))
    for member, held in enumerate(np.split(rows, context)):
        wanted = {member, 2 * context - 1 - member}
        assert {(row // sequence, row % sequence // chunk) for row in held} == {
            (number, part) for number in range(sequences) for part in wanted
        }


# What it costs


@pytest.mark.parametrize("form", FORMS)
def test_the_members_share_the_work_and_send_what_the_formulas_say(form):
    """The flop of all ranks are those of one; a member sends its keys and values, or its share of heads."""
    problem, members, layers = gpt(form, sequence=16, batch=2, dtype="float64"), 4, 2
    schedule = schedule_of(problem, Grid(context=members))
    assert total_flops(schedule) == step_flops(problem.shape, problem.batch).hardware
    tokens, item = problem.tokens // members, 8
    keys_values, queries = 2 * 4 * problem.head, 8 * problem.head
    passed = (members - 1) * tokens * keys_values * item * layers
    around = {"pass KV": passed, "pass KV again": passed, "pass dKV passed": passed, "return dKV": passed // 3}
    gathered = {"gather KV": passed, "gather KV again": passed, "scatter dKV": passed}
    share = tokens * (members - 1) * item * layers // members
    exchanged = {f"exchange {name}": share * (queries + keys_values) for name in ("QKV", "dQKV")}
    exchanged |= {f"exchange {name}": share * queries for name in ("A", "dA")}
    wanted = {"ring": around, "all-gather": gathered, "ulysses": exchanged}[form]
    by_op = volumes(schedule, Choices()).by_op
    assert {name: by_op[name].sent_total / members for name in wanted} == wanted


def test_activations_and_the_states_of_zero_shrink_with_the_axis():
    """ZeRO over 2 x 2 ranks of data and context has the states of ZeRO over 4 of data."""

    def bytes_of(grid, **options):
        schedule = gpt_schedule(gpt(sequence=16, **options), grid, find_scheme("4d"))
        return volumes(schedule, Choices())

    long, cut = (bytes_of(grid, batch=4) for grid in (Grid(data=4), Grid(context=4)))
    assert cut.peak_bytes_per_rank_max < 1.1 * long.peak_bytes_per_rank_max
    for zero in (1, 2, 3):
        both = gpt_schedule(gpt(zero=zero), Grid(data=2, context=2), find_scheme("4d"))
        data = gpt_schedule(gpt(zero=zero), Grid(data=4), find_scheme("4d"))
        for name in data.state:
            held = [schedule.tensors[name].block(schedule.coordinates(1)).elements for schedule in (both, data)]
            assert abs(held[0] - held[1]) <= (held[1] if held[1] < 4 else 1)


# What is refused


@pytest.mark.parametrize(
    ("problem", "grid", "scheme", "words"),
    [
        (gpt(sequence=12), Grid(context=4), "4d", "multiple of 8 tokens is accepted, not 12"),
        (gpt("ulysses"), Grid(context=4, x=2), "megatron", "x=2 times context=4 must divide key_heads = 4"),
        (gpt(), Grid(context=2), "tesseract", "scheme tesseract has no axis context"),
        (gpt(), Grid(context=2), "bian", "scheme bian has no axis context"),
        (gpt(attention="unfused"), Grid(context=2), "4d", "attention unfused on grid context=2: fused is accepted"),
        (gpt(sparsity=0.5), Grid(context=2), "4d", "sparsity 0.5 on grid context=2: 0 is accepted"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_is_accepted(problem, grid, scheme, words):
    with pytest.raises(InputError, match=words):
        gpt_schedule(problem, grid, find_scheme(scheme))


def test_forms_have_the_words_of_megatron_too():
    assert [find_context_form(word) for word in ("p2p", "all_gather", "a2a")] == list(FORMS)
    with pytest.raises(InputError, match=r"context-parallel 'rings': accepted are ring, all-gather, ulysses"):
        find_context_form("rings")
