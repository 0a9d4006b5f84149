"""Exercise 1: questions about a run. Each function takes `compiled.run`."""

from stack.demos.course.answers import Gap


def first_stage_with_groups(run):
    """The name of the first stage that has a fusion node at the top of its function."""
    raise Gap("look at run.records: a stage has .name and .func, a function has .nodes")


def bytes_saved(run):
    """Return how many bytes fewer the kernels move than one kernel for each imported op would.

    One kernel for each op of stage `imported` reads its operands and writes its result. A node has
    .args and .type, a type has .bytes; run.kernels have .bytes. Constants (nodes with .op
    "const") and parameters are no kernels.
    """
    raise Gap("add up what each node of run['imported'].func reads and writes")


def kernels_of_line(run, line):
    """Names of the kernels that compute something of a source line such as "block.py:42"."""
    raise Gap("a kernel has .source")
