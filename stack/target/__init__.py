"""Machines as data, for the cost models of passes and for code generation."""

from stack.target.files import as_cpu, as_gpu, load, names
from stack.target.host import cpu_at_hand
from stack.target.mma import Mma
from stack.target.record import Cpu, Gpu, Target

__all__ = ["Cpu", "Gpu", "Target", "Mma", "as_cpu", "as_gpu", "cpu_at_hand", "load", "names"]
