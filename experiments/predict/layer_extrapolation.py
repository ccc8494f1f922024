"""Linear extrapolation over layers: the times of a model with few layers determine those of the whole model.

Layers are equal, so from the second layer on each layer adds the same amount to every
figure of a step.  With overlap this holds, approximately, only after a few layers:
extrapolated from 6 and 8 layers, the time of 24 layers differed from the simulated time
by at most 0.7 % (data=2, z=32 of the GPUs below; 0.5 % for data=16, z=4; below 0.1 % for
four other grids).

    5b, batch 64, 64 GPUs of Perlmutter, oag, oar and ors: milliseconds of a layer after 2, 3, 4, 5, 6, 8 layers

    z=64         52.29  52.31  52.29  52.31  55.14  55.20
    z=32, x=2    28.72  28.74  29.21  30.21  30.24  30.24
    data=4, z=16 52.22  53.49  53.89  53.82  53.82  53.82

Two schedules of few layers therefore determine the time of all layers (`layer_counts`,
`extrapolated`).  A single schedule determines it less accurately, by the mean time of its
layers (`single_layer_count`).
"""

from quadrille.experiments.workloads.execution_options import ExecutionOptions

LayerCounts = tuple[int, int]
"""Two numbers of layers, from which figures of all layers are extrapolated linearly."""
FEW_LAYERS: LayerCounts = (2, 3)
FEW_LAYERS_WITH_OVERLAP: LayerCounts = (6, 8)


def layer_counts(execution: ExecutionOptions) -> LayerCounts:
    """Two numbers of layers from which figures are extrapolated; larger if communication overlaps local work."""
    return FEW_LAYERS_WITH_OVERLAP if execution.has_overlap else FEW_LAYERS


def single_layer_count(execution: ExecutionOptions) -> int:
    """The number of layers of a single schedule from whose mean layer figures are extrapolated: 3, or 6 with overlap.

    >>> options = ExecutionOptions(), ExecutionOptions(overlaps=frozenset({"oag"})), ExecutionOptions(bands=2)
    >>> [single_layer_count(execution) for execution in options]
    [3, 6, 6]
    """
    return max(FEW_LAYERS[1], layer_counts(execution)[0])


def periodic_layer_counts(layers: int, period: int) -> LayerCounts:
    """Two numbers of layers from which figures of `layers` layers are extrapolated, if layers repeat with a period.

    Both differ from `layers` by whole periods, so that the extrapolated layers are whole periods, too.

    >>> periodic_layer_counts(62, 1), periodic_layer_counts(62, 6), periodic_layer_counts(46, 2)
    ((2, 3), (2, 8), (2, 4))
    """
    few = FEW_LAYERS[0] + (layers - FEW_LAYERS[0]) % period
    return few, few + period


def extrapolated(low: float, high: float, depths: LayerCounts, layers: int) -> float:
    """A figure of `layers` layers, extrapolated linearly from its values at two numbers of layers.

    >>> extrapolated(1.0, 1.75, depths=(2, 3), layers=12)
    8.5
    """
    few, more = depths
    return low + (layers - few) / (more - few) * (high - low)
