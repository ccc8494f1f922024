"""NCCL's model of itself: what it chooses for a collective, and how long it thinks that takes."""

from quadrille.algorithms.collectives.nccl.communicator import Communicator, communicator
from quadrille.algorithms.collectives.nccl.costs import predicted_seconds
from quadrille.algorithms.collectives.nccl.plan import Choice, NcclPlan, choose, plan

__all__ = ["Choice", "Communicator", "NcclPlan", "choose", "communicator", "plan", "predicted_seconds"]
