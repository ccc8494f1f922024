"""A default has one place: a flag's is that of the words, and the words' is that of the value that they come to."""

import pytest

from quadrille.cli import network_commands, rank_command, shared_flags
from quadrille.cli.parsing.flags import CollectiveFlags, MatmulFlags, RankFlags, RunFlags, TrainingFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.cli.parsing.runs import parse_run
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.run_options import RunOptions

GROUPS = [
    (shared_flags.EXPERIMENT, TrainingFlags()),
    (shared_flags.TRAINING, TrainingFlags()),
    (shared_flags.EXECUTION, TrainingFlags()),
    (shared_flags.RUN, RunFlags()),
    (rank_command.RANKED, RankFlags()),
    (network_commands.COLLECTIVE, CollectiveFlags()),
]


@pytest.mark.parametrize(("group", "words"), GROUPS)
def test_the_default_of_a_flag_is_that_of_its_word(group, words):
    assert len(group) > 3
    assert {flag.name: flag.default for flag in group} == {flag.name: getattr(words, flag.name) for flag in group}


def test_every_word_of_an_experiment_has_a_flag():
    flags = {flag.name for group, words in GROUPS if isinstance(words, TrainingFlags) for flag in group}
    assert flags == set(TrainingFlags.__dataclass_fields__)


def test_words_that_nobody_typed_come_to_the_defaults_of_the_library():
    assert parse_run(RunFlags()) == RunOptions()
    assert parse_matmul(MatmulFlags(matmul="8,8,8")).execution == ExecutionOptions()
