"""`Experiment`: a matmul or training steps of a model, the argument of all verbs."""

from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.training import TrainingExperiment

Experiment = MatmulExperiment | TrainingExperiment
