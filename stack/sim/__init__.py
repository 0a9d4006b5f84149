"""The simulator: a partitioned program on machines that are not at hand.

`machine` reads what is known of a device and its links, `simulate` runs the steps of a rank's
program on many of them: computing and communicating side by side, memory over time.
"""

from stack.sim.machines import Link, Machine, machine, names
from stack.sim.run import Simulation, simulate
from stack.sim.stages import simulate_stages

__all__ = ["Link", "Machine", "Simulation", "machine", "names", "simulate", "simulate_stages"]
