"""A lowered function to an executable: print and compile each distinct kernel once, plan the rest."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from stack.ir import ops
from stack.ir.node import Block, Func, Node
from stack.ir.ops import rule_of
from stack.run.backend import Executable, Kernel

from . import jit
from .cache import Cache
from .executor import Program
from .library import result_types
from .printer import cost_of, print_kernel

ENTRY = "kernel"


def cache_folder() -> Path:
    """STACK_CACHE_DIR, or a folder in the user's cache directory."""
    found = os.environ.get("STACK_CACHE_DIR")
    if found:
        return Path(found)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stack"


class Compiler:
    """Native kernels by text: equal bodies are compiled once."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self.kernels: dict[str, jit.Kernel] = {}
        self.texts: dict[Block, str] = {}

    def load(self, node: Node) -> jit.Kernel:
        """The native kernel of a kernel node."""
        body = node.blocks[0]
        if body not in self.texts:
            self.texts[body] = print_kernel(node, ENTRY)
        text = self.texts[body]
        if text not in self.kernels:
            self.kernels[text] = jit.build(text, [ENTRY], self.cache)[ENTRY]
        return self.kernels[text]


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Compile a function whose kernels are at the loop level.

    Options:
        cache: False to keep nothing on disk (default: `cache_folder()`).
        call_opaque: what runs `opaque` nodes.
    """
    use_cache = options.get("cache", True)
    compiler = Compiler(Cache(cache_folder() / "mlir") if use_cache else None)
    program = Program(func.body, compiler.load, options.get("call_opaque"))
    named = kernel_names(func)
    return Executable(
        run=program.run,
        kernels=[_describe(func, step.node, step.library, named) for step in program.steps],
        artifacts={
            "mlir": lambda: _mlir(named),
            "llvm": lambda: _each(named, jit.lower),
            "asm": lambda: _each(named, jit.assembly),
        },
        counts_what="steps of the program: generated kernels and library calls",
        peak_bytes=program.arena_bytes,
        profile=program.profile,
    )


def kernel_names(func: Func) -> dict[Block, str]:
    """A name for each distinct kernel body of a program, loop bodies included."""
    found: dict[Block, str] = {}
    taken: dict[str, int] = {}
    pending = [func.body]
    while pending:
        for node in pending.pop().nodes:
            if node.op in ("while", "cond", "call"):
                pending.extend(node.blocks)
            if node.op != "kernel" or node.blocks[0] in found:
                continue
            name = str(node.attrs["name"])
            taken[name] = taken.get(name, 0) + 1
            found[node.blocks[0]] = name if taken[name] == 1 else f"{name}_{taken[name] - 1}"
    return found


def _kernel_node(body: Block, name: str) -> Node:
    """A kernel node around a body, for the printer, which looks at the body alone."""
    results = [r.tensor for r in body.results]
    types = [type(t)(t.dtype, t.shape) for t in results]
    from stack.ir.types import TupleType

    type_ = types[0] if len(types) == 1 else TupleType(tuple(types))
    return Node("kernel", (), {"name": name, "level": "loop"}, type_, (body,))


def _text(body: Block, name: str) -> str:
    symbol = "".join(c if c.isalnum() else "_" for c in name)
    return print_kernel(_kernel_node(body, name), symbol, readable=True)


def _mlir(named: dict[Block, str]) -> str:
    return "".join(f"// ---- {name}\n{_text(b, name)}\n" for b, name in named.items())


def _each(named: dict[Block, str], stage: Any) -> str:
    parts = [f"// ---- {name}\n{stage(_text(b, name))}\n" for b, name in named.items()]
    return "".join(parts)


def _describe(func: Func, node: Node, library: str, named: dict[Block, str]) -> Kernel:
    lines = list(func.body.locs.get(node, ()))
    stage_node = func.body.names.get(node, "")
    moved = float(sum(_bytes(a) for a in node.args) + sum(map(_size, result_types(node))))
    if node.op == "kernel":
        body = node.blocks[0]
        lines += [line for places in body.locs.values() for line in places]
        return Kernel(
            named[body],
            "generated",
            _text(body, named[body]),
            "mlir",
            stage_node,
            tuple(dict.fromkeys(line.split(" ")[0] for line in lines)),
            tuple(node.attrs.get("ops") or ()),
            sum(cost_of(n) for n in body.nodes),
            moved,
        )
    kind = "fallback" if node.op == "opaque" else "library"
    inner = node.blocks[0].nodes if node.op == "fusion" else ()
    name = library if library in ("numpy", "") else library
    return Kernel(
        f"{name}.{node.attrs.get('name', node.op)}" if name else node.op,
        kind,
        stage_node=stage_node,
        source=tuple(dict.fromkeys(line.split(" ")[0] for line in lines)),
        ops=tuple(dict.fromkeys(n.op for n in inner)) or (node.op,),
        flops=sum(_flops(n) for n in inner),
        bytes=moved,
    )


def _flops(node: Node) -> float:
    rule = rule_of(node)
    if rule is None or node.op not in ("dot", "conv", "reduce"):
        return 0.0
    sizes = rule.sizes([a.shape for a in node.args])
    return ops.lookup(node.op).flops * math.prod(float(s) for s in sizes.values())


def _bytes(node: Node) -> float:
    return sum(map(_size, result_types(node)))


def _size(type_: Any) -> float:
    size = type_.bytes
    return float(size) if isinstance(size, int) else 0.0
