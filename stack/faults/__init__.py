"""Wing `faults`: the first wrong pass, the first nan, the smallest failing program."""

from stack.faults.ask_first_nan import first_nan
from stack.faults.bisect import bisect
from stack.faults.first_nan import first_nan_of

__all__ = ["bisect", "first_nan", "first_nan_of"]
