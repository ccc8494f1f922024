"""NCCL's model of itself: what it chooses for a collective, and how long it thinks that takes."""

from algorithms.nccl.choice import Choice, choose
from algorithms.nccl.communicator import Communicator, communicator
from algorithms.nccl.costs import predicted_seconds
from algorithms.nccl.plan import NcclPlan, plan

__all__ = ["Choice", "Communicator", "NcclPlan", "choose", "communicator", "plan", "predicted_seconds"]
