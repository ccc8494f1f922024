"""How a group hands messages to MPI, by a communicator that only writes down what it is asked."""

from types import SimpleNamespace

import numpy as np

from runtime.mpi_communicator import Flight, MpiCommunicator


def verbs_of_a_send(**given):
    asked = []
    verbs = {verb: lambda *_, verb=verb: asked.append(verb) for verb in ("Isend", "Issend")}
    group = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2, **verbs)
    MpiCommunicator(group, **given).send(np.zeros(4), 1)
    return asked


def test_a_chunk_has_been_taken_when_its_send_has_ended_and_a_whole_step_may_still_lie_in_the_library():
    assert verbs_of_a_send(chunk_bytes=64) == ["Issend"]
    assert verbs_of_a_send() == ["Isend"]
    assert verbs_of_a_send(chunk_bytes=64, most_bytes=16) == ["Issend", "Issend"]


def test_a_single_request_is_asked_for_by_itself_and_not_again_when_it_has_ended():
    answers = iter([False, True])
    flight = Flight([SimpleNamespace(Test=lambda: next(answers))])
    assert not flight.done()
    assert flight.done() and flight.done()
