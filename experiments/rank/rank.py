"""`quadrille rank`: ranks every grid of a number of GPUs by an analytical model, and simulates the best grids.

If `quadrille launch` starts several ranks, they share the simulations.  Only rank 0
prints, and its output does not depend on the number of ranks.  Evaluations and
simulations are tasks (`quadrille.experiments.tasks`), whose answers a store keeps.
"""

from collections.abc import Callable, Sequence, Set

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.predict.training_step import TrainingStep, simulated_step
from quadrille.experiments.rank.analytical_ranking import rank_candidates
from quadrille.experiments.rank.configuration_evaluator import Configuration
from quadrille.experiments.rank.configuration_search import (
    RankedConfigurations,
    search_configurations,
    with_best_orders,
    with_unsearched,
)
from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.dense_states import compared, with_dense_states
from quadrille.experiments.rank.grids_report import GridsAnswer, SimulatedGrid, grids_answer, print_grids_answer
from quadrille.experiments.rank.layout_variants import first_simulated, further_variants
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ranking import DenseStates, order_by_seconds, write_answer
from quadrille.experiments.rank.schemes_report import (
    SchemesAnswer,
    SimulatedConfiguration,
    print_schemes_answer,
    schemes_answer,
)
from quadrille.experiments.rank.stored_evaluations import sampled_steps, simulated_steps
from quadrille.experiments.rank.work_sharing import WorkSharing, open_work_sharing
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import remark, remark_all
from quadrille.topologies.machines.machine_catalogue import larger_machine_remark

COMPARED = 3
"""Number of configurations without the searched options that are simulated for comparison."""


def rank(
    question: RankQuestion,
    space: SearchSpace | None = None,
    *,
    destinations: Destinations | None = None,
    jobs: int = 1,
    store: str = "",
    command: Sequence[str] = (),
    again: Callable[[SimulatedGrid | SimulatedConfiguration], str] = lambda _: "",
) -> GridsAnswer | SchemesAnswer:
    """Ranks the grids, or the configurations of schemes, and writes or prints the answer on rank 0.

    Parameters
    ----------
    question : model, machine, number of GPUs and limits of the grids
    space : schemes, pipelines, ZeRO stages and microbatches that are tried; None for the grids of the 4D algorithm
    destinations : files of the answer; None to print it
    jobs : number of processes that share the work
    store : path of the store of evaluations and simulations; empty for none
    command : words of the command line, for provenance
    again : function that returns the command that simulates a grid or configuration; the answer has it for each

    Raises
    ------
    InputError : a file cannot be written, or no grid fits in memory
    RunError : a process ended early, or the store cannot be written any more
    Interruption : the work was interrupted; the message says how many results are kept
    """
    to = destinations or Destinations()
    to.check({"--store": store} if store else {})
    with open_work_sharing(quiet=to.quiet, jobs=jobs, store=store, command=command) as work_sharing:
        answer = _with_commands(_ranked_answer(question, space, work_sharing), again)
        if work_sharing.store is not None:
            remark(work_sharing.store.use)
    if work_sharing.is_root:
        remark_all(_remarks(question))
        _write_files(answer, to)
        show: Callable[[], None] = (lambda: None) if to.to_stdout else lambda: _print(answer)
        write_answer(answer, to.json, command, show)
    return answer


def _write_files(answer: GridsAnswer | SchemesAnswer, to: Destinations) -> None:
    """Writes the CSV and the figure of the answer, if paths are given."""
    if not (to.csv or to.plot):
        return
    from quadrille.experiments.rank.ranking_figure import ranking_csv, ranking_figure

    if to.csv:
        schema_files.write_text(to.csv, ranking_csv(answer))
    if to.plot:
        from quadrille.experiments.output.pictures import write_figure

        write_figure(ranking_figure(answer), to.plot)


def ranking(question: RankQuestion, space: SearchSpace | None = None) -> GridsAnswer | SchemesAnswer:
    """The ranking of grids, or of configurations of schemes, with the best simulated; nothing is printed.

    Parameters
    ----------
    question : model, machine, number of GPUs and limits of the grids
    space : schemes, pipelines, ZeRO stages and microbatches that are tried, such as `default_space()`, that of the
        command line without flags; None for the grids of the 4D algorithm by AxoNN's communication model

    Raises
    ------
    InputError : no grid fits in memory
    """
    with open_work_sharing(quiet=True) as work_sharing:
        return _ranked_answer(question, space, work_sharing)


def _ranked_answer(
    question: RankQuestion, space: SearchSpace | None, work_sharing: WorkSharing
) -> GridsAnswer | SchemesAnswer:
    answer = _rank_grids(question, work_sharing) if space is None else _rank_schemes(question, space, work_sharing)
    if not question.problem.sparse_states:
        return answer
    return msgspec.structs.replace(answer, dense_states=_dense_states(question, space, work_sharing, answer))


def _dense_states(
    question: RankQuestion, space: SearchSpace | None, work_sharing: WorkSharing, answer: GridsAnswer | SchemesAnswer
) -> DenseStates:
    """The same question with dense states, and the gain of compressed states."""
    try:
        dense = _ranked_answer(with_dense_states(question), space, work_sharing)
    except InputError as error:
        return DenseStates(reason=str(error))
    return compared(answer.simulated[0], dense.simulated[0])


def _with_commands(
    answer: GridsAnswer | SchemesAnswer, again: Callable[[SimulatedGrid | SimulatedConfiguration], str]
) -> GridsAnswer | SchemesAnswer:
    """The answer with the command that simulates each entry."""
    entries = [msgspec.structs.replace(entry, command=again(entry)) for entry in answer.simulated]
    return msgspec.structs.replace(answer, simulated=entries)


def _print(answer: GridsAnswer | SchemesAnswer) -> None:
    if isinstance(answer, GridsAnswer):
        print_grids_answer(answer)
    else:
        print_schemes_answer(answer)


def _rank_grids(question: RankQuestion, work_sharing: WorkSharing) -> GridsAnswer:
    """The ranking of all grids by the analytical model, with the best grids simulated."""
    ranking = rank_candidates(question, work_sharing)
    places = range(min(question.top, len(ranking)))
    experiments = [question.experiment(ranking.candidate_grids.grid(place)) for place in places]

    def simulated(experiment: TrainingExperiment) -> TrainingStep:
        return simulated_step(experiment, question.machine, granularity=question.granularity)

    steps = work_sharing.share(simulated, experiments, "simulated", "grids", kind=simulated_steps(question))
    return grids_answer(question, ranking, steps)


def _rank_schemes(question: RankQuestion, space: SearchSpace, work_sharing: WorkSharing) -> SchemesAnswer:
    """The ranking of configurations of schemes by the closed form, with the best configurations simulated.

    The best configurations of the space for comparison, if there is one, are simulated too.
    """
    ranking = search_configurations(question, space, work_sharing)
    unsearched = _best_unsearched(question, space, work_sharing)
    ranking = with_unsearched(ranking, unsearched)
    compared = {configuration.experiment for configuration in unsearched[:COMPARED]}
    chosen = first_simulated(ranking.best, question.top) if space.wide else ranking.best[: question.top]
    first = {each.experiment for each in chosen} | compared
    steps = _simulated(question, ranking, first, work_sharing, in_full=space.wide)
    if space.wide:
        ranking, variants = _variants_of_fastest(question, ranking, steps, question.top - len(chosen), work_sharing)
        steps |= _simulated(question, ranking, variants, work_sharing, in_full=True)
    places = [place for place, configuration in enumerate(ranking.best) if configuration.experiment in steps]
    simulated_places = {place: steps[ranking.best[place].experiment] for place in places}
    usual = [place for place in places if ranking.best[place].experiment in compared]
    return schemes_answer(question, space, ranking, simulated_places, usual)


def _best_unsearched(
    question: RankQuestion, space: SearchSpace, work_sharing: WorkSharing
) -> tuple[Configuration, ...]:
    """The configurations without the searched options, the fastest by the closed form first; none if none fits."""
    if space.unsearched is None:
        return ()
    try:
        return search_configurations(question, space.unsearched, work_sharing).best
    except InputError:
        return ()


Steps = dict[TrainingExperiment, TrainingStep]
"""The simulated training step of each configuration."""


def _simulated(
    question: RankQuestion,
    ranking: RankedConfigurations,
    chosen: Set[TrainingExperiment],
    work_sharing: WorkSharing,
    *,
    in_full: bool,
) -> Steps:
    """The simulated steps of configurations of the ranking, the fastest by the closed form first.

    Parameters
    ----------
    in_full : whether pipelines are simulated with all layers and microbatches, as `simulate` does, or from a sample
    """
    evaluator = ranking.evaluator
    kind = simulated_steps(question) if in_full else sampled_steps(question, evaluator)

    def simulated(experiment: TrainingExperiment) -> TrainingStep:
        simulate = evaluator.simulated_in_full if in_full else evaluator.simulated
        return simulate(experiment, question.granularity)

    experiments = [each.experiment for each in ranking.best if each.experiment in chosen]
    steps = work_sharing.share(simulated, experiments, "simulated", "configurations", kind=kind)
    return dict(zip(experiments, steps, strict=True))


def _variants_of_fastest(
    question: RankQuestion, ranking: RankedConfigurations, steps: Steps, count: int, work_sharing: WorkSharing
) -> tuple[RankedConfigurations, set[TrainingExperiment]]:
    """The ranking with further variants of the fastest layouts in their fastest order of ranks, and these variants.

    Parameters
    ----------
    steps : simulated steps of the best variant of each layout
    count : number of further variants
    """
    experiments = [*steps]
    fastest_first = [experiments[place] for place in order_by_seconds([*steps.values()])]
    variants = further_variants(ranking.best, fastest_first, count)
    ranking, ordered = with_best_orders(question, ranking, variants, work_sharing)
    return ranking, {variant.experiment for variant in ordered}


def _remarks(question: RankQuestion) -> list[str]:
    """Remarks for the user about simplifications of the model and missing rates of the machine."""
    machine, dtype = question.machine, question.training.dtype
    differences, remarks = question.shape.differences, []
    if larger := larger_machine_remark(machine, question.gpus):
        remarks.append(larger)
    if differences:
        remarks.append(f"{question.shape.name} is simulated differently: {'; '.join(differences)}")
    if dtype not in machine.device.peak_flops_per_second:
        dtypes = ", ".join(machine.device.peak_flops_per_second)
        remarks.append(f"{machine.name} gives no speed for {dtype}, only for {dtypes}")
    return remarks
