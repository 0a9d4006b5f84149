"""Exercise 2: rules. Each is asked at a node and gives what takes its place, None, or a Why."""

from stack.demos.course.answers import Gap
from stack.rewrite import Why, on, splat  # noqa: F401


@on("exp")
def exp_of_log(node, op, scope):
    """exp(log(x)) is NOT x: of x = -1 the left side is nan. Refuse, and say why."""
    raise Gap("give None where the operand is no log, and a Why where it is")


@on("max")
def idempotent(node, op, scope):
    """max(max(x, c), c) is max(x, c), for any c."""
    raise Gap("node.args[0] may be a max whose second operand is this one's")


@on("mul")
def reassociate(node, op, scope):
    """(x * c) * d is x * (c * d) for integer constants c and d; floats would round otherwise."""
    raise Gap("splat gives the constants; op.const(value, dtype) makes the new one")
