"""`quadrille rank`: every grid of a number of GPUs by the analytical model, the best of them simulated.

Started by `quadrille launch`, the ranks share the simulations.  Only the first rank
prints, and its output does not depend on the number of ranks.
"""

from collections.abc import Callable, Sequence

from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.analytical import ranked
from quadrille.experiments.rank.answer import write_answer
from quadrille.experiments.rank.configurations import Space
from quadrille.experiments.rank.grids_report import RankAnswer, SimulatedGrid, answer_of, print_answer
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.schemes_report import SchemesAnswer, SimulatedConfiguration
from quadrille.experiments.rank.schemes_report import answer_of as schemes_answer
from quadrille.experiments.rank.schemes_report import print_answer as print_schemes
from quadrille.experiments.rank.search import search
from quadrille.experiments.rank.sharing import Crew, assemble
from quadrille.experiments.rank.step import granularity_of, simulated_step
from quadrille.runtime.host.console import remark_all


def rank(
    question: RankQuestion,
    space: Space | None = None,
    *,
    destinations: Destinations | None = None,
    command: Sequence[str] = (),
    again: Callable[[SimulatedGrid | SimulatedConfiguration], str] = lambda _: "",
) -> RankAnswer | SchemesAnswer:
    """Ranks the grids, or the configurations of schemes, and writes or prints the answer on the first rank.

    Parameters
    ----------
    space : schemes, pipelines, ZeRO stages and microbatches that are tried; None for the grids of the 4D algorithm
    command : the words of the command line, for provenance
    again : returns the command that simulates the fastest grid or configuration, which is printed

    Raises
    ------
    InputError : a file cannot be written, or no grid fits in memory
    """
    to = destinations or Destinations()
    to.check()
    crew = assemble(quiet=to.quiet)
    answer = _answered(question, space, crew)
    if crew.is_root:
        remark_all(_remarks(question))
        write_answer(answer, to.json, command, lambda: _print(answer, again(answer.simulated[0])))
    return answer


def ranking(question: RankQuestion, space: Space | None = None) -> RankAnswer | SchemesAnswer:
    """The grids, or the configurations of schemes, ranked, the best of them simulated; nothing is printed.

    Parameters
    ----------
    space : schemes, pipelines, ZeRO stages and microbatches that are tried; None for the grids of the 4D algorithm

    Raises
    ------
    InputError : no grid fits in memory
    """
    return _answered(question, space, assemble(quiet=True))


def _answered(question: RankQuestion, space: Space | None, crew: Crew) -> RankAnswer | SchemesAnswer:
    return _rank_grids(question, crew) if space is None else _rank_schemes(question, space, crew)


def _print(answer: RankAnswer | SchemesAnswer, again: str) -> None:
    if isinstance(answer, RankAnswer):
        print_answer(answer, again)
    else:
        print_schemes(answer, again)


def _rank_grids(question: RankQuestion, crew: Crew) -> RankAnswer:
    """All grids by the analytical model, and the best of them simulated."""
    ranking = ranked(question, crew)
    grids = [ranking.candidates.grid(place) for place in range(min(question.top, len(ranking)))]

    def simulated(place: int) -> TrainingStep:
        return simulated_step(question, grids[place])

    return answer_of(question, ranking, crew.share(simulated, range(len(grids)), "simulated", "grids"))


def _rank_schemes(question: RankQuestion, space: Space, crew: Crew) -> SchemesAnswer:
    """The configurations of schemes by the closed form, and the best of them simulated."""
    ranking = search(question, space, crew)
    best = ranking.best[: question.top]

    def simulated(place: int) -> TrainingStep:
        return ranking.evaluator.simulated(best[place].experiment, granularity_of(question))

    return schemes_answer(question, ranking, crew.share(simulated, range(len(best)), "simulated", "configurations"))


def _remarks(question: RankQuestion) -> list[str]:
    """Remarks that a user should know besides the answer."""
    machine, dtype = question.machine, question.training.dtype
    differences, remarks = question.shape.differences, []
    if differences:
        remarks.append(f"{question.shape.name} is simulated differently: {'; '.join(differences)}")
    if dtype not in machine.device.peak_flops_per_second:
        dtypes = ", ".join(machine.device.peak_flops_per_second)
        remarks.append(f"{machine.name} gives no speed for {dtype}, only for {dtypes}")
    return remarks
