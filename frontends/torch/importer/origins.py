"""The origin of an FX node: line of user code, module, variable.

Dynamo names a node after the local variable that first stores its value. AOTAutograd records for
each ATen op the Dynamo node that it belongs to. Among the ops of one Dynamo node, the variable is
the one value used outside, by other nodes or as a result. If several are used outside, none gets
the name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node

import stack.frontends as frontends
import stack.plugins as plugins

_OWN = os.path.dirname(plugins.__file__)
_OURS = (os.path.dirname(frontends.__file__), os.path.join(_OWN, "hosted"))
_TORCHS = os.path.dirname(torch.__file__)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_ROOT = re.compile(r"^(L\['[^']*'\]|G\['[^']*'\]|L__self__|self)\.?")
_VARIABLE = re.compile(r"^[LG]\['(\w+)'\](.*)$")
_TABLE = re.compile(r"\b_(modules|parameters|buffers)\b\.?")
_ITEM = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")
_ATEN = torch.ops.aten
_RESHAPES = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default)


def source_line(node: Node) -> tuple[str, ...]:
    """Returns the innermost line of user code, and the module: `("block.py:42 attn.wq",)`."""
    place = _innermost(node.meta.get("stack_trace") or "")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    path = module_path(list(stack.values())[-1][0]) if stack else ""
    text = f"{place} {path}".strip()
    return (text,) if text else ()


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> str:
    frames = [f for f in _FRAME.findall(trace) if not f[0].startswith(_OURS)]
    own = [f for f in frames if not f[0].startswith(_TORCHS)]
    if not frames:
        return ""
    file, line = (own or frames)[-1]
    return f"{os.path.basename(file)}:{line}"


@lru_cache(maxsize=4096)
def module_path(source: str) -> str:
    """Returns the module path of a source: `attn.wq` of `L['self']._modules['attn'].wq`."""
    rest = _ITEM.sub(r".\1", _ROOT.sub("", source))
    return _TABLE.sub("", rest).replace("..", ".").strip(".")


def variable_name(source: str) -> str:
    """Returns the variable of a source: `args.0` of `L['args'][0]`, else the module path."""
    match = _VARIABLE.match(source)
    if match is None or match[1] == "self" or _TABLE.search(match[2]):
        return module_path(source)
    return f"{match[1]}.{module_path(match[2])}".strip(".")


# ---- names of the user's variables


def variable_names(graph: Graph) -> dict[Node, str]:
    """Returns the variable name of each node whose value, possibly reshaped, is assigned to one."""
    # the name of the Dynamo node that an op belongs to, and its name without a variable
    origins: dict[Node | None, tuple[str, str]] = {}
    parts: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        sources, made = node.meta.get("from_node"), node.meta.get("source_fn_stack")
        if not sources or not made:
            continue
        source: Any = sources[-1]
        while source.from_node:
            source = source.from_node[-1]
        origin = origins[node] = source.name, made[-1][0]
        if origin[0] != origin[1]:
            parts.setdefault(origin, []).append(node)
    found: dict[Node, str] = {}
    for origin, nodes in parts.items():
        left = [n for n in nodes if _is_tensor(n) and _leaves(n, origin, origins)]
        if len(left) == 1:
            value: Node | None = left[0]
            while value is not None:
                found[value] = origin[0]
                value = _reshaped(value)
                value = value if origins.get(value) == origin else None
    return found


def _leaves(node: Node, origin: Any, origins: Mapping[Node | None, Any]) -> bool:
    """True if the graph returns a node's value, or an op of another Dynamo node reads it.

    Ops of derivatives have no origin and do not count.
    """
    users = [u for u in node.users if u.op == "output" or origins.get(u) is not None]
    return any(origins.get(u) != origin for u in users)


def _reshaped(node: Node) -> Node | None:
    return node.all_input_nodes[0] if node.target in _RESHAPES else None


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
