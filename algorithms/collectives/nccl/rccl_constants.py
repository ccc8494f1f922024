"""RCCL's tuning constants for AMD's GPUs, as printed in its source and in its units.

RCCL, AMD's fork of NCCL, chooses by NCCL's formula t = latency + bytes / bandwidth with tables of its own: latencies
of hops, the share of the channels' bandwidth that each algorithm and protocol reaches, and factors on the bandwidth by
size. It has no NVLS and no PAT, and LL128 only with tables of machines that are not modelled here.

    MI250X, one node         tuning_model_0: rome_model_62, without options
    MI250X, several nodes    tuning_model_3: rome_model_63, whose bus numbers are Frontier's
    MI300X, MI325X           tuning_model_5: rome_model_79
    MI355X                   tuning_model_6; its LL128 is not modelled

Source: AMD, RCCL, commit 0cbce2a7 (October 2024), src/graph/tuning.cc: baseLat, tuning_model_0, 3 and 5,
ncclTopoTuneModel and ncclTopoGetAlgoTime; src/graph/rome_models.cc.  The same file in 2025: tuning_model_6.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from quadrille.algorithms.collectives.nccl.tuning_constants import Generation, Triple

RcclAlgorithm = Literal["tree", "ring"]
Sizes = tuple[float, ...]

BASE_LATENCY: Final[Triple] = (12.0, 12.0, 17.0)
"""Latency before the first step, of trees and of rings, by protocol [us]."""


@dataclass(frozen=True, slots=True)
class TuningModel:
    """The tables of one kind of machine; each row has LL, LL128 and Simple, and 0 for a protocol without a table.

    Parameters
    ----------
    inside, between : latency of a step over xGMI, and over the network [us]
    share_of_two, share_of_more : share of the channels' bandwidth, on up to two nodes and on more
    factors : factors on the bandwidth at 64 B, 128 B, …, of LL and of Simple; of rings on several nodes only
    """

    inside: dict[RcclAlgorithm, Triple]
    between: dict[RcclAlgorithm, Triple]
    share_of_two: dict[RcclAlgorithm, Triple]
    share_of_more: dict[RcclAlgorithm, Triple]
    factors: dict[RcclAlgorithm, tuple[Sizes, Sizes]]


_MI250X_NODE = TuningModel(
    inside={"tree": (0.8, 1.4, 2.5), "ring": (0.8, 2.2, 3.6)},
    between={"tree": (11.8, 18.2, 20.8), "ring": (9.5, 19.8, 15.1)},
    share_of_two={"tree": (0.04, 0.22, 0.91), "ring": (0.04, 0.34, 1.0)},
    share_of_more={"tree": (0.04, 0.22, 0.95), "ring": (0.04, 0.34, 1.0)},
    factors={
        "tree": (
            (0.1, 0.2, 0.1, 0.1, 0.9, 0.3, 0.4, 0.1, 0.2, 0.4, 0.2, 0.1, 0.3, 0.3, *[0.2] * 3, *[0.1] * 10),
            (0.2, 1, 0.1, 0.1, 0.7, 0.2, 0.4, 0.1, 0.1, 0.3, 0.4, 0.3, 0.6, 0.8, *[1] * 4, 0.9, *[0.8] * 5, *[0.9] * 3),
        ),
        "ring": (
            (*[0.1] * 5, 0.2, 0.4, 0.2, 0.3, 0.5, 0.3, 0.1, 0.5, 0.5, 0.3, 0.2, 0.2, *[0.1] * 10),
            (1, 0.8, 0.2, 1, 1, 0.3, 1, 0.1, 0.1, 0.2, 0.2, 0.1, 0.5, 1, 0.8, 0.8, 1, 0.9, *[1] * 9),
        ),
    },
)
_MI250X_NODES = TuningModel(
    inside={"tree": (0.8, 0, 2.5), "ring": (0.8, 0, 3.6)},
    between={"tree": (12.5, 0, 22.4), "ring": (9.5, 0, 19.8)},
    share_of_two={"tree": (0.2, 0, 1.75), "ring": (0.2, 0, 1.0)},
    share_of_more={"tree": (0.2, 0, 0.96), "ring": (0.2, 0, 1.0)},
    factors={
        "tree": (
            (*[0.1] * 6, 1, 1, 0.2, 1, 0.9, 1, 0.6, 0.4, 0.6, 0.4, *[0.3] * 5, *[0.2] * 6),
            (*[1] * 6, *[0.1] * 3, 0.2, 1, 0.8, *[1] * 9, 0.8, 0.7, 0.8, 0.9, 0.7, 0.7),
        ),
        "ring": (
            (*[0.1] * 5, 0.3, 0.1, 0.2, 0.1, 0.4, 0.4, 0.2, 0.2, 0.3, 0.7, 0.5, 0.4, *[0.3] * 4, *[0.2] * 6),
            (*[0.1] * 7, 0.5, 1, 0.1, 0.3, *[0.1] * 3, *[0.2] * 3, 0.3, 0.4, 0.7, *[1] * 7),
        ),
    },
)
_MI300X = TuningModel(
    inside={"tree": (0.9, 0, 2.3), "ring": (0.8, 0, 2.1)},
    between={"tree": (10.5, 0, 25.0), "ring": (9.5, 0, 320.0)},
    share_of_two={"tree": (0.06, 0, 0.11), "ring": (0.08, 0, 1.0)},
    share_of_more={"tree": (0.06, 0, 0.59), "ring": (0.08, 0, 1.0)},
    factors={
        "tree": (
            (*[0.1] * 6, *[1] * 5, 0.6, 1, 0.9, 1, 1, *[0.1] * 11),
            (*[0.1] * 15, 0.7, *[1] * 10, 0.8),
        ),
        "ring": (
            (*[0.1] * 11, 1, 0.2, 1, 0.4, 0.4, 0.1, 0.2, 0.2, *[0.1] * 8),
            (*[0.1] * 23, 0.8, *[1] * 3),
        ),
    },
)
_MI355X = replace(
    _MI300X,
    factors={
        "tree": (_MI300X.factors["tree"][0], (*[0.1] * 15, 0.7, 1, *[0.1] * 3, 0.9, 0.9, 0.7, 0.8, *[0.6] * 3)),
        "ring": (_MI300X.factors["ring"][0], (*[0.1] * 22, 1, 0.8, 0.8, 1, 1)),
    },
)


def tuning_model(generation: Generation, nodes: int) -> TuningModel:
    """The tables that RCCL takes for a generation of AMD's GPUs on this number of nodes."""
    if generation in ("cdna3", "cdna4"):
        return _MI300X if generation == "cdna3" else _MI355X
    return _MI250X_NODE if nodes == 1 else _MI250X_NODES


SIZES = 27
"""Entries of each row of factors; the last holds for larger sizes, too."""
assert all(
    len(row) == SIZES
    for model in (_MI250X_NODE, _MI250X_NODES, _MI300X, _MI355X)
    for rows in model.factors.values()
    for row in rows
)
