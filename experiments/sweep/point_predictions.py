"""`predict_point`: the prediction at one point of a sweep, an answer or the reason why there is none.

For the best grid of a point, the closed form of `quadrille.experiments.predict` ranks all
grids of the number of ranks.  The first few grids that fit in memory are simulated, and the
fastest is the answer.
"""

from collections.abc import Iterator
from dataclasses import replace

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.matmuls.catalogue import find_algorithm
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.compare.attribution import COMPUTE_KINDS, charged_seconds, charged_waiting
from quadrille.experiments.predict.idle_cards import idle_cards_remarks
from quadrille.experiments.predict.predict import choose_order, record_and_prediction
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment, prepare
from quadrille.experiments.sweep.sweep_points import (
    BestGrid,
    Impossible,
    OneCollective,
    OneGrid,
    SweepPoint,
    with_point_choices,
)
from quadrille.experiments.sweep.sweep_result import SweepAnswer, TrainingResult
from quadrille.experiments.sweep.training_point import training_result
from quadrille.experiments.workloads.fitting_grids import no_grid_of
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.no_grid import matmul_shortage
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import exposed_seconds_by_axis, iteration_times
from quadrille.topologies.machines.machine_catalogue import larger_machine_remark


def predict_point(point: SweepPoint) -> SweepAnswer:
    """The prediction at a point of a sweep; for an impossible point, an answer with the reason.

    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> from quadrille.topologies.find_machine import find_machine
    >>> point = OneGrid(MatmulExperiment(Matmul(64, 64, 64), Grid(x=8)), find_machine("perlmutter"))
    >>> predict_point(point).ranks
    8
    """
    try:
        match point:
            case OneGrid():
                return _predict_on_grid(with_point_choices(point))
            case BestGrid():
                return _predict_best_grid(with_point_choices(point))
            case OneCollective():
                from quadrille.experiments.sweep.collective_point import predict_collective_point

                return predict_collective_point(point)
            case Impossible(reason):
                return SweepAnswer(reason=reason)
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))


def _predict_on_grid(point: OneGrid) -> SweepAnswer:
    """The prediction of an experiment on its own grid."""
    experiment, machine, order_found = point.experiment, point.machine, None
    if experiment.execution.any_order:
        order = choose_order(experiment, machine, granularity="auto")
        experiment, order_found = order.with_chosen_order(experiment), str(order.ranked[0])
    prepared = prepare(experiment, machine)
    return _answer(prepared, record_and_prediction(prepared, granularity="auto")[0], order_found=order_found)


def _predict_best_grid(point: BestGrid) -> SweepAnswer:
    """The prediction on the fastest grid, among the grids that the closed form ranks first.

    Raises
    ------
    InputError : the algorithm has no grid of this number of ranks, or no grid fits in memory
    """
    from quadrille.experiments.predict.matmul_grids import rank_grids  # brings the simulator along

    experiment, gpus, machine = point.experiment, point.gpus, point.machine
    if not isinstance(experiment, MatmulExperiment):
        from quadrille.experiments.sweep.best_grid import best_training_grid

        return best_training_grid(point)
    # The order of `axes:` says which ranks share a device, not how many: any grid of so many ranks tells.
    device = fullest_device(machine, gpus, experiment.execution.placement, Grid(x=gpus))
    ranked = rank_grids(
        experiment.problem,
        [find_algorithm(experiment.algorithm)],
        gpus,
        machine,
        choices=experiment.execution.choices,
        overlaps=experiment.execution.overlaps,
        order=experiment.grid.order,
        threads=experiment.execution.threads,
    )
    if not ranked:
        raise InputError(no_grid_of(experiment.algorithm, gpus))
    fitting = [grid for grid in ranked if device.fits(machine, grid.peak_bytes)]
    if not fitting:
        least = min(ranked, key=lambda grid: grid.peak_bytes)
        shortage = matmul_shortage(replace(experiment, grid=least.grid), least.peak_bytes, device.ranks)
        raise InputError(shortage.message(machine))
    prepared_grids = [prepare(replace(experiment, grid=grid.grid), machine) for grid in fitting[: point.top]]
    records = [(prepared, record_and_prediction(prepared, granularity="auto")[0]) for prepared in prepared_grids]
    prepared, fastest = min(records, key=lambda pair: pair[1].seconds)
    return _answer(prepared, fastest, grids=len(ranked), simulated=len(prepared_grids))


def _answer(
    prepared: PreparedExperiment,
    record: Record,
    *,
    order_found: str | None = None,
    grids: int | None = None,
    simulated: int | None = None,
) -> SweepAnswer:
    """The answer of a sweep from a predicted record; for training, of one iteration.

    Parameters
    ----------
    order_found : rank order that `--order auto` chose; None without it
    grids, simulated : number of grids that were ranked by the closed form, and number that were simulated
    """
    experiment, machine, device = prepared.experiment, prepared.machine, prepared.device
    trained: TrainingResult | None = None
    seconds, ops, steps = record.seconds, record.ops, 1
    rate = experiment.flops / (record.ranks * seconds) if seconds else None
    if isinstance(experiment, TrainingExperiment):
        iteration = iteration_times(experiment, experiment.unchecked_schedule(), record.seconds, record.ops)
        seconds, ops, steps = iteration.seconds, iteration.ops, iteration.steps
        exposed_by_axis = {axis: seconds / steps for axis, seconds in exposed_seconds_by_axis(experiment, ops).items()}
        if seconds:
            trained = training_result(
                experiment, machine, prepared.threads, seconds, exposed_by_axis, layers=experiment.problem.layers
            )
        rate = trained.model_flops_per_second_per_gpu if trained else None
    communication_ops = [op for op in ops if op.kind not in COMPUTE_KINDS]
    exposed, waiting = (
        sum(map(charged_seconds, communication_ops)) / steps,
        sum(map(charged_waiting, communication_ops)) / steps,
    )
    return SweepAnswer(
        ranks=record.ranks,
        grid_lengths=record.grid,
        order_found=order_found,
        seconds=seconds,
        compute_seconds=sum(op.seconds for op in ops if op.kind in COMPUTE_KINDS) / steps,
        exposed_seconds=exposed,
        waiting_seconds=waiting,
        communication_share=(exposed + waiting) / seconds if seconds else None,
        flops_per_second_per_gpu=rate,
        bytes_sent_per_rank_max=record.bytes_sent_per_rank_max,
        peak_bytes_per_rank_max=record.peak_bytes_per_rank_max,
        fits=device.fits(machine, record.peak_bytes_per_rank_max),
        extrapolated=any(op.extrapolated for op in record.ops),
        grids=grids,
        simulated=simulated,
        trained=trained,
        remarks=tuple(_remarks(prepared, record)),
    )


def _remarks(prepared: PreparedExperiment, record: Record) -> Iterator[str]:
    """Remarks about the prediction at a point: options without effect, oversubscription, missing measurements."""
    experiment, machine = prepared.experiment, prepared.machine
    if larger := larger_machine_remark(machine, experiment.grid.size):
        yield larger
    yield from experiment.remarks(prepared.schedule)
    yield from idle_cards_remarks(prepared)
    if oversubscribed := prepared.device.remark(machine):
        yield oversubscribed
    dtype, rates = experiment.dtype, machine.device.peak_flops_per_second
    if dtype not in rates:
        yield f"{machine.name} gives no speed for {dtype}, only for {', '.join(rates)}"
    if not machine.device.gemm:
        yield f"{machine.name} has no measured products: they are predicted from data sheets and public measurements"
    elif any(op.extrapolated for op in record.ops):
        yield f"some ops lie outside what was measured on {machine.name}: they are extrapolated"
