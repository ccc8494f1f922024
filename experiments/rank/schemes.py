"""`quadrille rank` with schemes, pipelines, ZeRO or microbatches: all by the closed form, the best simulated."""

from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.configurations import Space
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.schemes_report import SchemesAnswer, answer_of
from quadrille.experiments.rank.search import search
from quadrille.experiments.rank.sharing import Crew
from quadrille.experiments.rank.step import granularity_of


def rank_schemes(question: RankQuestion, space: Space, crew: Crew) -> SchemesAnswer:
    """The answer: every configuration that was evaluated, and the best of them simulated.

    Raises
    ------
    InputError : no configuration fits in memory
    """
    ranking = search(question, space, crew)
    best = ranking.best[: question.top]

    def simulated(place: int) -> TrainingStep:
        return ranking.evaluator.simulated(best[place].experiment, granularity_of(question))

    return answer_of(question, ranking, crew.share(simulated, range(len(best)), "simulated", "configurations"))
