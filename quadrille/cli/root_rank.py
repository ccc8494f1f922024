"""Whether this process speaks: of the ranks that a launcher starts, one does."""

from collections.abc import Mapping


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether the launcher calls this process rank 0, or did not start it.

    >>> is_first({}), is_first({"PMI_RANK": "0"}), is_first({"PMI_RANK": "3"})
    (True, True, False)
    """
    from quadrille.runtime.host.world import RANK_VARIABLES  # with MPI's names, which --help does not need

    return all(environment.get(name, "0") == "0" for name in RANK_VARIABLES)
