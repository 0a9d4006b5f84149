"""Explains why a torch program does not give one graph, with ops and source lines."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from stack.errors import NoElementType, StackError, UnsupportedOp
from stack.frameworks import torch_private as private
from stack.frontends.torch.importer.origins import source_line
from stack.run.rejected_arguments import FAULT, is_own, is_users, raise_as_eager, raise_if_refused

_TORCHS = os.path.dirname(torch.__file__) + os.sep
PARTS = "torch.compile(fn, backend='stack') compiles the parts around it"
_ITEM = "aten._local_scalar_dense.default"  # of `.item()`, `int(x)`, `float(x)`
# parts of Dynamo's messages that are for developers of Dynamo
_INTERNAL = (
    *("Developer debug context", "For more details about", "Set TORCHDYNAMO_VERBOSE"),
    *("For C++ stack trace", "User Stack", "from user code"),
)
# parts that blame the program or its arguments
_REFUSED = ("Observed exception", "may result in an error when running in eager")
_ADVICE = ("For ", "If you suspect", "Caused by: ")
_BRANCH = re.compile(r"data-dependent expression (.+?) \(unhinted")
_MOST = 6  # maximum number of lines of a Dynamo message


def raise_with_ops(error: StackError, gm: GraphModule, node: Node | None) -> NoReturn:
    """Raises the error of an import; if data-dependent ops caused it, UnsupportedOp with these.

    An element type that the IR lacks is one of `node`, the call that was imported.
    """
    if isinstance(error, NoElementType) and node is not None:
        raise error.at(str(node.target), source_line(node)) from error
    found = sized_by_data(gm)
    if not found:
        raise error
    raise UnsupportedOp(found, f"its result depends on data; {PARTS}") from error


def sized_by_data(gm: GraphModule) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the ops of a graph whose result is a data-dependent number, or has such a size."""
    seen: set[Any] = set()
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in gm.graph.nodes:
        if not isinstance(node.target, private.OpOverload):
            continue
        new = _unknown(node.meta.get("val")) - seen
        seen |= new
        if new:
            name = str(node.target)
            found.append((".item()" if name == _ITEM else name, source_line(node)))
    return list(dict.fromkeys(found))


def _unknown(value: Any) -> set[Any]:
    """Returns the symbols in a traced value that are known only at run time."""
    found: set[Any] = set()
    for leaf in private.pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            found |= free_unbacked_symbols(leaf)
    return found


def raise_explained(
    error: Exception,
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    more: str = "",
) -> NoReturn:
    """Raise an error that the user can act on, in place of Dynamo's exception."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, StackError):
        raise inner from None
    said = str(error)
    refused = isinstance(error, private.dynamo_run_error()) or any(
        mark in said for mark in _REFUSED
    )
    if inner is not None and _is_ours(inner):
        raise_if_refused(fn, args, kwargs, inner, more)
        inner.add_note(FAULT)
        raise inner from None
    if refused or inner is not None:
        raise_as_eager(fn, args, kwargs, error, more)
    if inner is not None:
        raise StackError(f"torch could not trace {fn!r}: {inner}") from inner
    raise StackError(break_text(error)) from error


def _is_ours(error: BaseException) -> bool:
    """True if an error was raised by this library or one of its passes, not by torch."""
    files = [f.filename for f in reversed(traceback.extract_tb(error.__traceback__))]
    last = next((f for f in files if f.startswith(_TORCHS) or is_own(f)), "")
    return is_own(last)


def break_text(error: Exception) -> str:
    """Explains why a function does not give one graph, at which line, and what to do."""
    said = [part for part in str(error).split("\n\n") if part.strip()]
    kept = [p.rstrip() for p in said if not p.strip().startswith(_INTERNAL)]
    lines = [line for p in kept for line in p.splitlines() if not line.startswith(_ADVICE)]
    place = place_of(getattr(error, "real_stack", None) or ())
    place = place and f", at {place}"
    head = f"the function does not make one graph{place}; {PARTS}."
    if isinstance(error, private.dynamo_run_error()):  # `torch.compile` fails with every backend
        head = f"torch does not trace the function{place}; eager runs it."
    branch = _BRANCH.search(str(error))
    if branch is not None:
        why = f"A branch depends on data: on {branch[1]}, where u0, u1 and so on are numbers or"
        return f"{head}\n{why} sizes that depend on data. torch.where computes both sides."
    return "\n".join([head, *lines[:_MOST]])


def place_of(frames: Sequence[Any]) -> str:
    """Returns the innermost user frame as "net.py:31: `y.item()`"; "" if there is none."""
    if not frames:
        return ""
    own = [f for f in frames if is_users(f.filename)]
    last = (own or frames)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}: `{(last.line or '').strip()}`"
