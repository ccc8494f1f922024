"""The ranking of candidate grids by AxoNN's analytical communication model, without grids that do not fit in memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.axonn import MODELLED, block_seconds
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.training.offload import DEFAULT_BUCKET
from quadrille.algorithms.training.recompute import WHOLE_LAYERS
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.rank.candidate_grids import CandidateGrids, Ints, candidate_grids
from quadrille.experiments.rank.memory_by_grid import host_bytes_by_grid, peak_bytes_by_grid
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ring_bandwidths import (
    Ring,
    bandwidth_table,
    simulated_bandwidth,
    simulated_bandwidths,
    split_known_bandwidths,
)
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.no_grid import TooLarge, step_shortage
from quadrille.topologies.machines.machine import HostLink

Floats = NDArray[np.float64]
EQUAL_DIGITS = 9
"""Decimal digits in which two times must agree to count as equal; equal grids keep their order."""


@dataclass(frozen=True, slots=True)
class RankedGrids:
    """The candidate grids that fit in memory, the fastest by the model first.

    Parameters
    ----------
    seconds : communication time of one training step on each grid [s] [grids]
    by_axis : communication time of one training step on each grid, by axis [s] [grids]
    peak_bytes : largest memory of a rank on each grid [B] [grids]
    without : number of grids that do not fit
    bandwidths : bus bandwidth of every ring that was simulated for the model [B/s]
    from_table : whether the bandwidths of the other rings were measured
    """

    candidate_grids: CandidateGrids
    seconds: Floats
    by_axis: dict[Axis, Floats]
    peak_bytes: Ints
    without: int
    bandwidths: dict[Ring, float]
    from_table: bool

    def __len__(self) -> int:
        return len(self.seconds)


def rank_candidates(question: RankQuestion, work_sharing: WorkSharing) -> RankedGrids:
    """All candidate grids that fit in memory, ranked by the communication model.

    Parameters
    ----------
    question : model, machine, number of GPUs and limits of the grids
    work_sharing : ranks that share the simulations of ring bandwidths

    Raises
    ------
    InputError : the model can be trained on no grid, or no grid fits in memory
    """
    all_candidates = candidate_grids(question.gpus, question.limits, question.shape, question.problem.batch)
    bytes_needed, host_bytes = _bytes_of_candidates(question, all_candidates)
    bytes_per_rank = question.machine.device.memory_bytes / fullest_device(question.machine, question.gpus).ranks
    fits = bytes_needed <= bytes_per_rank
    if not fits.any():
        raise InputError(_too_large_message(question, all_candidates, bytes_needed))
    fits &= _fits_on_hosts(question, host_bytes)
    if not fits.any():
        raise InputError(_host_shortage_message(question, int(host_bytes.min())))
    fitting = all_candidates[fits]
    table = bandwidth_table(question.machine, question.gpus)
    strides = fitting.strides()
    rings = {axis: _rings_of_axis(strides[axis], fitting.lengths[axis]) for axis in MODELLED}
    known_bandwidths, lacking = split_known_bandwidths((ring for of_axis in rings.values() for ring in of_axis), table)
    rate = simulated_bandwidth(question.machine, question.gpus)
    kind = simulated_bandwidths(question.machine, question.gpus)
    rates = work_sharing.share(rate, lacking, "simulated", "bandwidths that no table has", kind=kind)
    simulated = dict(zip(lacking, rates, strict=True))
    known_bandwidths |= simulated
    bandwidths = {axis: np.array([known_bandwidths[ring] for ring in of_axis]) for axis, of_axis in rings.items()}
    by_axis = _communication_seconds(question, fitting, bandwidths)
    seconds = np.sum(list(by_axis.values()), axis=0)
    fastest_first = np.argsort(_rounded(seconds), kind="stable")
    return RankedGrids(
        fitting[fastest_first],
        seconds[fastest_first],
        {axis: of_axis[fastest_first] for axis, of_axis in by_axis.items()},
        bytes_needed[fits][fastest_first],
        int((~fits).sum()),
        simulated,
        table is not None,
    )


def _fits_on_hosts(question: RankQuestion, host_bytes: Ints) -> NDArray[np.bool_]:
    """Whether the memory of a host holds what its ranks keep there, on each grid [grids]."""
    link = question.machine.host_link
    if link is None:
        return np.ones(len(host_bytes), dtype=np.bool_)
    fits: NDArray[np.bool_] = _ranks_of_host(question, link) * host_bytes <= link.memory_bytes
    return fits


def _ranks_of_host(question: RankQuestion, link: HostLink) -> int:
    from quadrille.simulator.machine.placement import place_ranks
    from quadrille.simulator.ranks.host_links import ranks_of_host

    return ranks_of_host(link, place_ranks(question.machine, question.gpus))


def _host_shortage_message(question: RankQuestion, rank_bytes: int) -> str:
    """The error message if the memory of a host suffices on no grid.

    Parameters
    ----------
    rank_bytes : least host memory of a rank [B]
    """
    link = question.machine.host_link
    assert link is not None
    kept, there = _ranks_of_host(question, link) * rank_bytes, format_bytes(int(link.memory_bytes))
    return (
        f"no grid fits: --offload {question.problem.offload} keeps at least {format_bytes(kept)} in the memory of a "
        f"host, and a host of {question.machine.name} has {there}; more --gpus would help"
    )


def _bytes_of_candidates(question: RankQuestion, all_candidates: CandidateGrids) -> tuple[Ints, Ints]:
    """The largest memory of a rank on each grid, on the device and on its host [B].

    Grids with the same axes longer than 1 share a schedule.
    """
    offload = question.problem.offload
    bucket = DEFAULT_BUCKET if offload is None or not offload.bucket else offload.bucket
    long = np.stack([all_candidates.lengths[axis] > 1 for axis in MODELLED], axis=1)
    kinds, kind_of = np.unique(long, axis=0, return_inverse=True)
    peak_bytes, host_bytes = (np.zeros(len(all_candidates), dtype=np.int64) for _ in range(2))
    for number in range(len(kinds)):
        same = np.flatnonzero(kind_of.ravel() == number)
        schedule = question.schedule(all_candidates.grid(int(same[0])))
        peak_bytes[same] = peak_bytes_by_grid(schedule, all_candidates[same].lengths, bucket)
        host_bytes[same] = host_bytes_by_grid(schedule, all_candidates[same].lengths, bucket)
    return peak_bytes, host_bytes


def _rings_of_axis(strides: Ints, lengths: Ints) -> list[Ring]:
    return list(zip(strides.tolist(), lengths.tolist(), strict=True))


def _communication_seconds(
    question: RankQuestion, fitting: CandidateGrids, bandwidths: dict[Axis, Floats]
) -> dict[Axis, Floats]:
    """The communication time of all layers on each grid, by axis [s] [grids]; a group of one rank sends nothing."""
    rows = question.problem.batch * question.shape.sequence / fitting.lengths["data"]
    block = block_seconds(
        rows,
        question.products(),
        fitting.lengths,
        bandwidths,
        recomputed=question.problem.recompute in WHOLE_LAYERS,
        gradient_bytes=question.problem.precision.gradient_bytes * question.problem.kept_share,
    )
    return {axis: question.shape.layers * seconds for axis, seconds in block.items()}


def _rounded(seconds: Floats) -> Floats:
    return np.array([float(f"{value:.{EQUAL_DIGITS}e}") for value in seconds.tolist()])


def _too_large_message(question: RankQuestion, all_candidates: CandidateGrids, bytes_needed: Ints) -> str:
    """The error message if no grid fits: the smallest memory that a grid needs, and options that reduce it."""
    least = int(np.argmin(bytes_needed))
    step = TooLarge(question.experiment(all_candidates.grid(least)), int(bytes_needed[least]))
    sharing = fullest_device(question.machine, question.gpus).ranks
    return step_shortage(step, f"model {question.shape.name}", question.machine, sharing).message(question.machine)
