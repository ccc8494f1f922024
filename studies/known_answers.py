"""`KnownAnswers`: the answers to a study's questions, each computed once, by several processes and from a store."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quadrille.experiments.output.progress import StepCount
from quadrille.experiments.rank.work_sharing import TaskKind, WorkSharing

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class KnownAnswers(Generic[Question, Answer]):
    """A function that returns the answer to a question, which is computed unless it is known.

    >>> squares = KnownAnswers(lambda number: number**2, TaskKind("square", int, int))
    >>> squares.find([2, 3, 2], StepCount("computed", "squares", total=3))
    >>> squares(4), squares.answers
    (16, {2: 4, 3: 9, 4: 16})

    Parameters
    ----------
    answer : function that computes the answer to a question
    kind : the questions as tasks of a store
    work_sharing : processes that share the questions, and the store
    answers : answers that are known
    """

    answer: Callable[[Question], Answer]
    kind: TaskKind
    work_sharing: WorkSharing = field(default_factory=WorkSharing)
    answers: dict[Question, Answer] = field(default_factory=dict)

    def __call__(self, question: Question) -> Answer:
        self.find([question], StepCount("computed", "questions", total=1))
        return self.answers[question]

    def find(self, questions: Iterable[Question], step_count: StepCount) -> None:
        """Compute the answers to the questions that are not known, each question once.

        Parameters
        ----------
        step_count : count of the questions that a progress line shows
        """
        questions = list(questions)
        lacking = [question for question in dict.fromkeys(questions) if question not in self.answers]
        step_count.done += len(questions) - len(lacking)
        answers = self.work_sharing.answers(self.answer, lacking, step_count, kind=self.kind)
        self.answers.update(zip(lacking, answers, strict=True))
