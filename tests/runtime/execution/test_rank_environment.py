"""What is refused where a rank runs."""

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.runtime.execution.rank_environment import check_calls


def test_mpis_vector_calls_are_refused_where_nccl_carries():
    for word in ("own", "library"):
        check_calls(parse_choices(word))
    with pytest.raises(InputError, match="'library:vector': NCCL has no such calls; accepted are library, own, or"):
        check_calls(parse_choices("library:vector"))
