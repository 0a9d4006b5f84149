"""The origin of an FX node: line of user code, module, variable."""

from __future__ import annotations

import os
import re
from functools import lru_cache

import torch
from torch.fx import Node

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


def source_line(node: Node) -> tuple[str, ...]:
    """Returns the innermost line of user code, and the module: `("block.py:42 attn.wq",)`."""
    place = _innermost(node.meta.get("stack_trace") or "")
    path = _module_path(node)
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


def _module_path(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    return module_path(list(stack.values())[-1][0])


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
