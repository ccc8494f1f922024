"""How many layers are simulated in place of all, and the straight line that goes on from them.

Layers are alike, so from the second on each adds the same to every figure of the
step.  Where communication runs beside local work, this holds once the layers have
fallen into step, nearly: straight on from 6 and 8 layers, steps of all 24 were off by at most
0.7 % (data=2, z=32 of the GPUs below; 0.5 % data=16, z=4; four other grids by less than 0.1 %).

    5b, batch 64, 64 GPUs of Perlmutter, oag, oar and ors: a layer's milliseconds after 2, 3, 4, 5, 6, 8 layers

    z=64         52.29  52.31  52.29  52.31  55.14  55.20
    z=32, x=2    28.72  28.74  29.21  30.21  30.24  30.24
    data=4, z=16 52.22  53.49  53.89  53.82  53.82  53.82

Two schedules of few layers therefore say what all take (`depths_of`, `straight`), or,
less well, one alone, whose layers are taken to last as long as their mean (`depth_of_one`).
"""

from quadrille.experiments.workloads.execution_options import ExecutionOptions

Depths = tuple[int, int]
"""Two numbers of layers, from which a straight line goes on to all."""
FEW: Depths = (2, 3)
IN_STEP: Depths = (6, 8)


def depths_of(execution: ExecutionOptions) -> Depths:
    """The depths from which on every layer adds the same, or nearly so."""
    return IN_STEP if execution.runs_beside else FEW


def depth_of_one(execution: ExecutionOptions) -> int:
    """The layers of a schedule that is looked at alone: a first, a last and one between, or as many as fall into step.

    >>> options = ExecutionOptions(), ExecutionOptions(overlaps=frozenset({"oag"})), ExecutionOptions(bands=2)
    >>> [depth_of_one(execution) for execution in options]
    [3, 6, 6]
    """
    return max(FEW[1], depths_of(execution)[0])


def straight(low: float, high: float, depths: Depths, layers: int) -> float:
    """A figure of so many layers, from what it is of either depth.

    >>> straight(1.0, 1.75, depths=(2, 3), layers=12)
    8.5
    """
    few, more = depths
    return low + (layers - few) / (more - few) * (high - low)
