"""A process in which one partitioner runs on one annotated function: IR text in, JSON out.

python -m stack.measure.partition_child NAME < function.txt
"""

from __future__ import annotations

import json
import sys

import stack
import stack.plugins as plugins
from stack.errors import StackError
from stack.run.partitioner import Partitioner


def main() -> None:
    """Runs a partitioner on the IR text of stdin; prints its partition, or its error, as JSON."""
    partitioner: Partitioner = plugins.load("stack.partitioners", sys.argv[1])
    func = stack.parse(sys.stdin.read())
    try:
        document = partitioner.run(func).as_dict()
    except StackError as error:
        document = {"error": str(error)}
    print(json.dumps(document))


if __name__ == "__main__":
    main()
