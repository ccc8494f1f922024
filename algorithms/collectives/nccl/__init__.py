"""NCCL's model of itself: what it chooses for a collective, and how long it thinks that takes."""

from algorithms.collectives.nccl.choice import Choice, choose
from algorithms.collectives.nccl.communicator import Communicator, communicator
from algorithms.collectives.nccl.costs import predicted_seconds
from algorithms.collectives.nccl.plan import NcclPlan, plan

__all__ = ["Choice", "Communicator", "NcclPlan", "choose", "communicator", "plan", "predicted_seconds"]
