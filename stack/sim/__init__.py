"""Simulator for partitioned programs on machines that are not available.

`machine` loads the data of a device and its links. `simulate` runs the steps of a rank's program on
many devices: computation and communication overlap, and memory is tracked over time.
"""

from stack.sim.machines import Cluster, Link, machine, names
from stack.sim.run import Simulation, simulate
from stack.sim.stages import simulate_stages

__all__ = ["Link", "Cluster", "Simulation", "machine", "names", "simulate", "simulate_stages"]
