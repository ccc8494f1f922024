"""All candidate grids by the analytical model: which fit in memory, and how long each communicates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.axonn import MODELLED, block_seconds
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.rank.bandwidths import Ring, known, simulated_bandwidth, table_of
from quadrille.experiments.rank.candidates import Candidates, Ints, candidates
from quadrille.experiments.rank.memory import peak_bytes_by_grid
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.sharing import Crew
from quadrille.experiments.workloads.fullest_device import fullest_device

Floats = NDArray[np.float64]
ALIKE = 9
"""Decimal digits in which two times must agree to count as equal; equal grids keep their order."""


@dataclass(frozen=True, slots=True)
class RankedGrids:
    """Candidates that fit, the fastest by the model first.

    Parameters
    ----------
    seconds : communication time of one training step [s], for each candidate
    by_axis : communication time of one training step [s], by axis
    peak_bytes : memory of the fullest rank [B], for each candidate
    without : number of grids that do not fit
    bandwidths : bus bandwidth of every ring that was simulated for the model [B/s]
    from_table : whether the bandwidths of the other rings were measured
    """

    candidates: Candidates
    seconds: Floats
    by_axis: dict[Axis, Floats]
    peak_bytes: Ints
    without: int
    bandwidths: dict[Ring, float]
    from_table: bool

    def __len__(self) -> int:
        return len(self.seconds)


def ranked(question: RankQuestion, crew: Crew) -> RankedGrids:
    """All candidates that fit, ranked by the model.

    Raises
    ------
    InputError : the model can be trained on no grid, or no grid fits in memory
    """
    every = candidates(question.gpus, question.limits, question.shape, question.problem.batch)
    needed = _needed(question, every)
    room = question.machine.device.memory_bytes / fullest_device(question.machine, question.gpus).ranks
    fits = needed <= room
    if not fits.any():
        raise InputError(_too_large(question, every, needed))
    left = every[fits]
    table = table_of(question.machine, question.gpus)
    strides = left.strides()
    rings = {axis: _rings(strides[axis], left.lengths[axis]) for axis in MODELLED}
    known_bandwidths, lacking = known((ring for of_axis in rings.values() for ring in of_axis), table)
    rate = simulated_bandwidth(question.machine, question.gpus)
    simulated = dict(zip(lacking, crew.share(rate, lacking, "simulated", "bandwidths that no table has"), strict=True))
    known_bandwidths |= simulated
    bandwidths = {axis: np.array([known_bandwidths[ring] for ring in of_axis]) for axis, of_axis in rings.items()}
    by_axis = _seconds(question, left, bandwidths)
    seconds = np.sum(list(by_axis.values()), axis=0)
    best = np.argsort(_rounded(seconds), kind="stable")
    return RankedGrids(
        left[best],
        seconds[best],
        {axis: of_axis[best] for axis, of_axis in by_axis.items()},
        needed[fits][best],
        int((~fits).sum()),
        simulated,
        table is not None,
    )


def _needed(question: RankQuestion, every: Candidates) -> Ints:
    """Bytes of the fullest rank of each candidate; grids with the same axes longer than 1 share a schedule."""
    long = np.stack([every.lengths[axis] > 1 for axis in MODELLED], axis=1)
    kinds, kind_of = np.unique(long, axis=0, return_inverse=True)
    peak_bytes = np.zeros(len(every), dtype=np.int64)
    for number in range(len(kinds)):
        same = np.flatnonzero(kind_of.ravel() == number)
        schedule = question.schedule(every.grid(int(same[0])))
        peak_bytes[same] = peak_bytes_by_grid(schedule, every[same].lengths)
    return peak_bytes


def _rings(strides: Ints, lengths: Ints) -> list[Ring]:
    return list(zip(strides.tolist(), lengths.tolist(), strict=True))


def _seconds(question: RankQuestion, left: Candidates, bandwidths: dict[Axis, Floats]) -> dict[Axis, Floats]:
    """Communication time of all layers [s], by axis; a group of one rank sends nothing."""
    rows = question.problem.batch * question.shape.sequence / left.lengths["data"]
    block = block_seconds(
        rows,
        question.products(),
        left.lengths,
        bandwidths,
        recomputed=question.problem.recompute == "full",
        gradient_bytes=question.problem.precision.gradient_bytes,
    )
    return {axis: question.shape.layers * seconds for axis, seconds in block.items()}


def _rounded(seconds: Floats) -> Floats:
    return np.array([float(f"{value:.{ALIKE}e}") for value in seconds.tolist()])


def _too_large(question: RankQuestion, every: Candidates, needed: Ints) -> str:
    """An error message: why no grid fits, the smallest need, and what would help."""
    least = int(np.argmin(needed))
    device, name = question.machine.device.memory_bytes, question.machine.name
    helps = ["more --gpus"]
    helps += ["--attention fused"] if question.problem.attention != "fused" else []
    helps += ["--recompute full"] if question.problem.recompute != "full" else []
    helps += (
        ["--gradient-bytes 2"]
        if question.problem.precision.gradient_bytes == 4 and question.problem.precision.mixed
        else []
    )
    helps += ["a smaller --batch"]
    return (
        f"no grid fits: model {question.shape.name} on {question.gpus} GPUs needs at least "
        f"{format_bytes(int(needed[least]))} a GPU (grid {every.grid(least)}), and one of {name} has "
        f"{format_bytes(device)}: {', '.join(helps)} or a machine with more memory would help"
    )
