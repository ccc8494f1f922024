"""`ScalingPoint`: a run of the weak scaling of AxoNN with its predictions."""

import msgspec


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the weak scaling with its predictions; all shares are percentages of the peak.

    Parameters
    ----------
    machine, model, gpus : machine, model and number of GPUs
    grid : grid of the predictions
    chosen : candidate that the grid is: rule or model
    published : published share of peak; null if it is not at hand
    source : source of the published share
    untapered : predicted share if cables between groups never fill
    equal : predicted share with equal GPUs
    differing : predicted share with GPUs that differ in speed
    measured : the same with the network at its measured rate; null if no measurement is known
    command : command line of `differing`
    """

    machine: str
    model: str
    gpus: int
    grid: str
    chosen: str
    published: float | None
    source: str
    untapered: float
    equal: float
    differing: float
    measured: float | None
    command: str
