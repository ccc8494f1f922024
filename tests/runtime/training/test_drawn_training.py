"""Training steps drawn at random, every scheme and choice with every other: right, or refused."""

from math import prod

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes import band_ranges
from tests.support.draws import examples
from tests.support.training_jobs import ended, verdict

SIZES = {"layers": 4, "hidden": 30, "heads": 6, "sequence": 7, "vocabulary": 127}
AXES = {
    "4d": ("pipeline", "data", "z", "y", "x"),
    "megatron": ("pipeline", "data", "x"),
    "optimus": ("pipeline", "data", "z", "x"),
    "tesseract": ("pipeline", "data", "z", "y", "x"),
    "bian": ("pipeline", "data", "z", "y", "x"),
}
MOST_RANKS = 8


@pytest.fixture(autouse=True, scope="module")
def few_rows():
    """Bands of dW however few their rows are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(band_ranges, "LEAST_ACCUMULATED_ROWS", 1)
        yield


@st.composite
def grids(draw, scheme):
    """Lengths of a few axes of the scheme."""
    axes = draw(st.lists(st.sampled_from(AXES[scheme]), min_size=1, max_size=3, unique=True))
    lengths = {axis: draw(st.sampled_from((2, 3, 4) if axis == "pipeline" else (2, 3))) for axis in axes}
    if scheme == "optimus":
        lengths.setdefault("z", 1)
    assume(prod(lengths.values()) <= MOST_RANKS)
    return lengths


@st.composite
def overlaps(draw):
    return ",".join(draw(st.lists(st.sampled_from(("oar", "ors", "oag")), unique=True, max_size=3))) or "none"


@st.composite
def gpts(draw):
    """Flags of a GPT's training steps."""
    scheme = draw(st.sampled_from(list(AXES)))
    lengths = draw(grids(scheme))
    shares = lengths.get("data", 1) * lengths.get("z", 1) * (lengths.get("x", 1) if scheme == "bian" else 1)
    micro = draw(st.sampled_from((0, 1, 2)))
    turns = draw(st.integers(1, 3))
    traits = draw(st.sampled_from(("", ",architecture=llama,key_heads=6", ",gated=yes", ",shared_table=no")))
    return {
        "gpt": ",".join(f"{name}={size}" for name, size in SIZES.items()) + traits,
        "batch": str(shares * (max(1, micro) * turns + draw(st.integers(0, max(0, micro - 1))))),
        "grid": ",".join(f"{axis}={length}" for axis, length in lengths.items()),
        "scheme": scheme,
        "sequence_parallel": scheme == "megatron" and draw(st.booleans()),
        "zero": draw(st.sampled_from("0012")) if "data" in lengths else "0",
        "micro_batch": str(micro) if micro else "",
        "interleave": draw(st.sampled_from("12")) if "pipeline" in lengths else "1",
        "attention": draw(st.sampled_from(("fused", "unfused"))),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "gathered": draw(st.sampled_from(("again", "keep"))),
        "overlap": draw(overlaps()),
        "bands": draw(st.sampled_from("1123")),
        "clip": draw(st.sampled_from(("0", "0.1"))),
        "collectives": draw(st.sampled_from(("own", "own:doubling", "library"))),
    }


@st.composite
def stacks(draw):
    """Flags of a stack of linear layers; sizes need not divide."""
    scheme = draw(st.sampled_from(("4d", "megatron")))
    lengths = draw(grids(scheme))
    return {
        "mlp": ",".join(str(draw(st.integers(3, 17))) for _ in range(draw(st.integers(2, 5)))),
        "batch": str(draw(st.integers(6, 30))),
        "grid": ",".join(f"{axis}={length}" for axis, length in lengths.items()),
        "scheme": scheme,
        "gathered": draw(st.sampled_from(("again", "keep"))),
        "overlap": draw(overlaps()),
        "bands": draw(st.sampled_from("1123")),
        "clip": draw(st.sampled_from(("0", "0.01"))),
        "collectives": draw(st.sampled_from(("own", "own:halving_doubling", "library"))),
    }


def right(flags):
    """Runs two steps in float64, where they are not refused, and compares them with the serial run."""
    try:
        run = ended(steps="2", dtype="float64", **flags)
    except InputError:
        assume(False)
    found = verdict(run)
    assert found.ok, found
    assert found.bound < 1e-5


@settings(max_examples=examples(18), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(gpts())
def test_any_gpt_that_is_not_refused_is_right(flags):
    right(flags)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(stacks())
def test_any_stack_of_layers_that_is_not_refused_is_right(flags):
    right(flags)
