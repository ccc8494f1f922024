"""`quadrille rank` with schemes, pipelines, ZeRO or microbatches: all by the closed form, the best simulated."""

from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.command_of_fastest import simulate_command
from quadrille.experiments.rank.configurations import parse_space
from quadrille.experiments.rank.question import Question, RankFlags
from quadrille.experiments.rank.ranking_page import lengths_of
from quadrille.experiments.rank.schemes_report import SchemesAnswer, SimulatedConfiguration, answer_of
from quadrille.experiments.rank.search import search
from quadrille.experiments.rank.sharing import Crew
from quadrille.experiments.rank.step import granularity_of
from quadrille.experiments.words.machines import MachineWords


def rank_schemes(flags: RankFlags, question: Question, crew: Crew) -> SchemesAnswer:
    """The answer: every configuration that was looked at, and the best of them simulated.

    Raises
    ------
    InputError : a scheme or a number that cannot be; no configuration that fits
    """
    space = parse_space(
        scheme=flags.scheme,
        pipeline=flags.pipeline,
        zero=flags.zero,
        micro_batch=flags.micro_batch,
        interleave=flags.interleave,
        sequence_parallel=flags.sequence_parallel,
    )
    found = search(question, space, crew)
    best = found.best[: question.top]

    def simulated(place: int) -> TrainingStep:
        return found.looker.simulated(best[place].experiment, granularity_of(question))

    return answer_of(question, found, crew.share(simulated, range(len(best)), "configurations simulated"))


def scheme_command(flags: RankFlags, on: MachineWords, best: SimulatedConfiguration) -> str:
    """The command that simulates a configuration in full."""
    more = ["--scheme", best.scheme, "--micro-batch", str(best.micro_batch)]
    more += ["--sequence-parallel"] if best.sequence_parallel else []
    more += ["--zero", str(best.zero)] if best.zero else []
    more += ["--interleave", str(best.interleave)] if best.interleave > 1 else []
    grid = lengths_of(best.grid)
    return simulate_command(flags.in_full, on, grid, ",".join(best.order), even_shards=best.shards == "even", more=more)
