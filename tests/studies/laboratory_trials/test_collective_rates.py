"""The trial of rings has a row for each way that carries a collective out differently."""

from quadrille.algorithms.schedule.ops import AllReduce
from quadrille.studies.laboratory_trials.collective_rates import OPS, implementations_of


def test_the_library_is_tried_by_both_calls_where_mpi_has_two():
    for op in OPS:
        words = [words for words, _ in implementations_of(op) if words != "own"]
        assert words == (["library"] if isinstance(op, AllReduce) else ["library", "library:vector"])
