"""An experiment: what every verb takes, a multiplication or training steps of a model."""

from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.training import TrainingExperiment

Experiment = MatmulExperiment | TrainingExperiment
