"""Collectives: schedules of messages between ranks, which are proved, simulated, drawn and run."""

from stack.ops.collectives.algorithms import ALGORITHMS, algorithms_of, build
from stack.ops.collectives.network import Network
from stack.ops.collectives.schedule import Schedule, Transfer

__all__ = ["ALGORITHMS", "Network", "Schedule", "Transfer", "algorithms_of", "build"]
