"""Refuse programs whose results differ from run to run, since nothing can be compared with them."""

from __future__ import annotations

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node, deps
from stack.ir.traits import is_item, maker
from stack.run.coverage import walk

WAY_OUT = "for a module in training mode, call `.eval()`"


def check_draws(func: Func) -> None:
    """Raises UsageError if results depend on random draws or other unrepeatable ops."""
    found = [f"{n.attrs['target']} at {_line(func, n)}" for n in _drawn(func)]
    if found:
        named = ", ".join(dict.fromkeys(found))
        raise UsageError(f"the program uses random draws: {named}. Two runs differ; {WAY_OUT}")


def _drawn(func: Func) -> list[Node]:
    """Returns the nodes with side effects, such as random draws, whose values affect the program.

    Those are values that are results of the function, or that a node without side effects reads.
    Tokens, which only order side effects, do not count.
    """
    nodes = walk(func)
    own = [n for n in nodes if not _is_token(n)]
    read = {d for n in own if "effect" not in n.attrs for d in deps(n)}
    return [n for n in own if "effect" in n.attrs and (n in read or n in func.results)]


def _is_token(node: Node) -> bool:
    """True if a node is the token of an op with side effects, which only orders these.

    The token is the last result of such an op.
    """
    made = maker(node)
    if "token" not in made.attrs:
        return False
    return node.attrs["index"] == len(made.types) - 1 if is_item(node) else len(node.types) == 1


def _line(func: Func, node: Node) -> str:
    return ", ".join(func.body.locs.get(node, ())) or "no source line"
