"""The evaluator of configurations: which of several microbatches it chooses, and after how many looks at memory."""

from dataclasses import replace
from types import SimpleNamespace

from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import parse_question
from quadrille.experiments.rank import configuration_evaluator


def test_the_largest_microbatch_that_fits_is_found_with_few_evaluations(monkeypatch):
    """The oracle looks at every microbatch; a rank needs 1 GiB for each sequence of a microbatch."""
    asked = parse_question(
        RankFlags(gpt="layers=2,hidden=64,heads=2,sequence=16,vocabulary=64", batch="64", gpus="1"),
        MachineFlags(machine="perlmutter"),
    )
    alternatives = [
        replace(asked.training, problem=replace(asked.training.problem, micro_batch=2**power))
        for power in range(6, -1, -1)
    ]
    for limit in (0.5, 1, 3, 16, 63, 64, 100):
        evaluated = []

        def needed(experiment, _, evaluated=evaluated):
            evaluated.append(experiment)
            return experiment.problem.micro_batch * 2**30

        monkeypatch.setattr(configuration_evaluator, "schedule_peak_bytes", needed)
        monkeypatch.setattr(type(asked.training), "applied_schedule", lambda experiment: experiment)
        evaluator = configuration_evaluator.Evaluator(asked, {}, alternatives)
        monkeypatch.setattr(
            evaluator, "_placed", SimpleNamespace(fits=lambda _, size, limit=limit: size <= limit * 2**30)
        )
        monkeypatch.setattr(evaluator, "_step", lambda _: None)
        result = evaluator.first_fitting(alternatives)
        fitting = [experiment for experiment in alternatives if experiment.problem.micro_batch <= limit]
        assert result.experiment == (fitting[0] if fitting else alternatives[-1])
        assert len(evaluated) == len({*evaluated}) <= 5
