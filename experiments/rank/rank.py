"""`quadrille rank`: every grid of a number of GPUs by the analytical model, the best of them simulated.

Started by `quadrille launch`, the ranks share the simulations; the first one
speaks, and says the same whatever their number.
"""

from collections.abc import Sequence

from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.analytical import ranked
from quadrille.experiments.rank.answer import write_answer
from quadrille.experiments.rank.command_of_fastest import simulate_command
from quadrille.experiments.rank.grids_report import RankAnswer, SimulatedGrid, answer_of, print_answer
from quadrille.experiments.rank.question import Question, RankFlags, parse_question
from quadrille.experiments.rank.ranking_page import lengths_of
from quadrille.experiments.rank.schemes import rank_schemes, scheme_command
from quadrille.experiments.rank.schemes_report import SchemesAnswer
from quadrille.experiments.rank.schemes_report import print_answer as print_schemes
from quadrille.experiments.rank.sharing import Crew, assemble
from quadrille.experiments.rank.step import simulated_step
from quadrille.experiments.words.machines import MachineWords
from quadrille.experiments.words.runs import files_read
from quadrille.runtime.host.console import remark_all


def rank(
    flags: RankFlags, on: MachineWords, *, json: str = "", command: Sequence[str] = ()
) -> RankAnswer | SchemesAnswer:
    """Ranks the grids, or the configurations of schemes, and on the first rank writes or prints what came out.

    Parameters
    ----------
    json : a file, or `-` for stdout
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : a flag, a model, a machine or a file that cannot be; no grid that fits
    """
    Destinations(json=json).check(on.files | files_read(flags))
    question = parse_question(flags, on)
    crew = assemble()
    if flags.of_schemes:
        configured = rank_schemes(flags, question, crew)
        if crew.is_root:
            remark_all(_remarks(question))
            again = scheme_command(flags, on, configured.simulated[0])
            write_answer(configured, json, command, lambda: print_schemes(configured, again))
        return configured
    answer = _rank_grids(question, crew)
    if crew.is_root:
        remark_all(_remarks(question))
        again = _grid_command(flags, on, answer.simulated[0])
        write_answer(answer, json, command, lambda: print_answer(answer, again))
    return answer


def _rank_grids(question: Question, crew: Crew) -> RankAnswer:
    """All grids by the analytical model, and the best of them simulated."""
    found = ranked(question, crew)
    grids = [found.candidates.grid(place) for place in range(min(question.top, len(found)))]

    def simulated(place: int) -> TrainingStep:
        return simulated_step(question, grids[place])

    return answer_of(question, found, crew.share(simulated, range(len(grids)), "grids simulated"))


def _grid_command(flags: RankFlags, on: MachineWords, best: SimulatedGrid) -> str:
    """The command that simulates a grid."""
    even = best.shards == "even"
    return simulate_command(flags.in_full, on, lengths_of(best.grid), ",".join(best.order), even_shards=even)


def _remarks(question: Question) -> list[str]:
    """What a user should know beside the answer."""
    machine, dtype = question.machine, question.training.dtype
    differences, found = question.shape.differences, []
    if differences:
        found.append(f"{question.shape.name} is simulated otherwise: {'; '.join(differences)}")
    if dtype not in machine.device.peak_flops_per_second:
        known = ", ".join(machine.device.peak_flops_per_second)
        found.append(f"{machine.name} gives no speed for {dtype}, only for {known}")
    return found
