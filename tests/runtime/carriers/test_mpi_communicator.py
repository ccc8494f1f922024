"""How a group hands messages to MPI, by a communicator that only writes down what it is asked."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from quadrille.runtime.carriers.mpi_communicator import MpiCommunicator, MpiRequests


def verbs_of_a_send(synchronous, **given):
    asked = []
    verbs = {verb: lambda *_, verb=verb: asked.append(verb) for verb in ("Isend", "Issend")}
    group = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2, **verbs)
    MpiCommunicator(group, **given).send(np.zeros(4), 1, synchronous=synchronous)
    return asked


def test_a_message_has_been_taken_when_its_send_has_ended_only_where_that_is_asked_for():
    assert verbs_of_a_send(synchronous=True) == ["Issend"]
    assert verbs_of_a_send(synchronous=False) == ["Isend"]
    assert verbs_of_a_send(synchronous=True, max_message_bytes=16) == ["Issend", "Issend"]


CALLED = {
    ("all_gather", "regular"): "Allgather",
    ("all_gather", "vector"): "Allgatherv",
    ("reduce_scatter", "regular"): "Reduce_scatter_block",
    ("reduce_scatter", "vector"): "Reduce_scatter",
}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(("verb", "calls"), CALLED)
def test_equal_shards_go_by_the_calls_that_are_asked_for_and_a_gather_is_in_place(verb, calls, blocking):
    asked = []
    names = [form for name in CALLED.values() for form in (name, f"I{name.lower()}")]
    group = SimpleNamespace(
        Get_rank=lambda: 0,
        Get_size=lambda: 2,
        **{name: lambda *given, name=name: asked.append((name, given)) for name in names},
    )
    whole, piece = np.zeros(4), np.zeros(2)
    given = (whole, (0, 2, 4)) if verb == "all_gather" else (whole, (0, 2, 4), piece)
    getattr(MpiCommunicator(group), verb)(*given, blocking=blocking, calls=calls)
    ((name, arguments),) = asked
    assert name == (CALLED[verb, calls] if blocking else f"I{CALLED[verb, calls].lower()}")
    if verb == "all_gather":
        assert arguments[0] is MPI.IN_PLACE
        assert (arguments[1] is whole) == (calls == "regular")
    else:
        assert arguments == ((whole, piece) if calls == "regular" else (whole, piece, (2, 2)))


def test_a_single_request_is_asked_for_by_itself_and_not_again_when_it_has_ended():
    answers = iter([False, True])
    flight = MpiRequests([SimpleNamespace(Test=lambda: next(answers))])
    assert not flight.done()
    assert flight.done() and flight.done()
