"""Pruned training runs on the in-process carrier, and their states in the order of a checkpoint."""

from dataclasses import replace

import numpy as np

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.training.adam import is_moment
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.resume import training_state, with_state_outputs
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.training.pruned_source import kept_elements
from quadrille.runtime.training.tensor_copies import pruned_copy
from quadrille.runtime.training.training_data import TrainingSource
from tests.support.trainings import schedule_of


class PrunedRun:
    """A finished pruned run whose bytes and memory are those predicted."""

    def __init__(self, problem, grid, scheme=None, collectives="own", overlaps=()):
        schedule = with_state_outputs(schedule_of(problem, grid, scheme))
        self.schedule = validate(overlap(schedule, overlaps)) if overlaps else schedule
        sequence = problem.sequence if isinstance(problem, Gpt) else 0
        self.source = TrainingSource(self.schedule, seed=3, sequence=sequence, prune=problem.prune)
        choices = parse_choices(collectives)
        self.execution = execute(self.schedule, self.source, InProcess(grid.size), choices=choices)
        predicted = volumes(self.schedule, choices)
        assert max(self.execution.allocated_bytes.values()) == predicted.peak_bytes_per_rank_max
        if collectives.startswith("own"):
            assert sum(self.execution.bytes_sent.values()) == predicted.sent_total
        self.sent, self.memory = predicted.sent_total, predicted.peak_bytes_per_rank_max

    @property
    def losses(self):
        """The bits of the losses of all steps."""
        held = (blocks["loss"] for blocks in self.execution.outputs.values())
        return next([loss.tobytes() for loss in losses] for losses in held if losses and losses[0].size)

    def states(self):
        """The kept elements of weights, gradients and moments of pruned matrices, by the name of the copy."""
        vectors = {}
        for name in self.pruned_names():
            for gradient in (name,) if is_moment(name) else (name, f"d{name}"):
                self._add(gradient, name, vectors)
        assert vectors
        assert not any(np.isnan(vector).any() for vector in vectors.values())
        return vectors

    def pruned_names(self):
        tensors = self.schedule.tensors
        return [name for name in training_state(self.schedule) if name.endswith(" W") and name in tensors]

    def _add(self, name, state, vectors):
        tensor = self.schedule.tensors[name]
        for rank, outputs in self.execution.outputs.items():
            blocks = outputs[name] if tensor.copies else [outputs[name]]
            places_of_copies = tensor.copy_coordinates(self.schedule.coordinates(rank))
            for block, coordinates in zip(blocks, places_of_copies, strict=True):
                copy = pruned_copy(self.schedule, self.schedule.tensors[state].copy_name(coordinates))
                held = tensor.block(coordinates)
                if not held.elements:
                    continue
                places, elements = kept_elements(copy, held, block, self.source.mask)
                vector = vectors.setdefault(tensor.copy_name(coordinates), np.full(copy.kept_elements, np.nan))
                known = ~np.isnan(vector[places])
                assert np.array_equal(vector[places][known], elements[known]), f"{name} differs between ranks"
                vector[places] = elements


def both_runs(problem, grid, scheme=None, collectives="own", overlaps=()):
    """The run with dense and the run with compressed states."""
    return [
        PrunedRun(replace(problem, sparse_states=compressed), grid, scheme, collectives, overlaps)
        for compressed in (False, True)
    ]


def check_equal(problem, grid, scheme=None, collectives="own", overlaps=()):
    """Losses, weights, gradients and moments of the two runs have the same bits; returns the runs."""
    dense, compressed = both_runs(problem, grid, scheme, collectives, overlaps)
    assert dense.losses == compressed.losses
    first, second = dense.states(), compressed.states()
    assert first.keys() == second.keys()
    for name, vector in first.items():
        assert vector.tobytes() == second[name].tobytes(), name
        assert vector.any(), name
    return dense, compressed
