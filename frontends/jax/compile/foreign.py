"""Runs a compiled program as a JAX function: our kernels are custom calls, XLA does the rest.

Each maximal sequence of generated kernels is one `jax.ffi.ffi_call`, which XLA runs on its own
stream or thread, on buffers that it owns. Library groups, calls of JAX's primitives, and control
flow other than loops of kernels become JAX operations. So XLA compiles loops around custom calls,
and no step needs Python.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray

from stack.frontends.jax.lax.lowering import jax_dtype
from stack.frontends.jax.replay.space import JaxSpace
from stack.ir.interpreter import evaluate_node
from stack.ir.node import Block, Node
from stack.ir.traits import behind, is_item
from stack.run.foreign import ForeignCall, ForeignSteps, Value, value_of
from stack.wings import part

Array = Any

# a plan is an address: a program that JAX's cache has from another process must not find a handler
_PROCESS = uuid.uuid4().hex
_targets: dict[tuple[int, str], str] = {}  # names of handlers, by address and platform
# The calls of all programs, which exist until the process ends: XLA runs programs asynchronously,
# and does not tell when it has dropped one.
_calls: dict[tuple[int, tuple[Node, ...], tuple[Value, ...]], tuple[ForeignCall, ForeignSteps]] = {}


def replay_compiled(steps: ForeignSteps) -> Callable[..., tuple[Array, ...]]:
    """Returns the program as a function of arrays, to be traced by JAX."""
    replay = _Replay(steps)
    return lambda *arrays: replay.block(steps.func.body, arrays)


def _target(handler: int, platform: str) -> str:
    key = handler, platform
    if key not in _targets:
        name = f"stack_{platform}_{len(_targets)}_{_PROCESS}"
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform=platform)
        _targets[key] = name
    return _targets[key]


class _Replay:
    def __init__(self, steps: ForeignSteps) -> None:
        self.steps = steps
        self.space = JaxSpace()

    def block(self, block: Block, args: Sequence[Array]) -> tuple[Array, ...]:
        """Returns the results of a block."""
        env: dict[Value, Array] = {
            (p, 0): self.space.settle(a, p.tensor) for p, a in zip(block.params, args, strict=True)
        }
        for takes, nodes in _parts(block, self.steps):
            if takes:
                self._call(block, nodes, env)
                continue
            for node in nodes:
                results = self._other(node, [self._read(a, env) for a in node.args])
                env.update(((node, i), result) for i, result in enumerate(results))
        return tuple(self._read(r, env) for r in block.results)

    def _read(self, node: Node, env: Mapping[Value, Array]) -> Array:
        """Returns the array of a value, reshaped if the node is a view of it."""
        source = behind(node)
        if source.op == "const":
            array = self.space.settle(self.space.constant(source.attrs["value"]), source.tensor)
        else:
            array = env[value_of(source)]
        return array if source is node else jnp.reshape(array, node.shape)

    # ---- our kernels

    def _call(self, block: Block, nodes: Sequence[Node], env: dict[Value, Array]) -> None:
        """Runs consecutive nodes as one custom call."""
        own = set(nodes)
        read = dict.fromkeys(value_of(a) for node in nodes for a in node.args)
        given = [v for v in read if v[0] not in own and v[0].op != "const"]
        wanted = [v for v in _read_elsewhere(block, own) if v[0] in own]
        if not wanted:
            return
        key = id(self.steps), tuple(nodes), tuple(wanted)
        if key not in _calls:
            _calls[key] = self.steps.call(nodes, given, wanted), self.steps
        call, _ = _calls[key]
        types = [node.types[item] for node, item in wanted]
        specs = [jax.ShapeDtypeStruct(t.shape, _in_bytes(jax_dtype(t.dtype))) for t in types]
        if call.scratch:
            specs.append(jax.ShapeDtypeStruct((call.scratch,), np.uint8))
        operands = [env[v].astype(_in_bytes(env[v].dtype)) for v in given]
        aliases = {i: r for i, r in call.updates.items() if operands[i].dtype == specs[r].dtype}
        for i, r in aliases.items():
            operands[i] = jnp.reshape(operands[i], specs[r].shape)
        target = _target(call.handler, self.steps.platform)
        run = jax.ffi.ffi_call(target, specs, input_output_aliases=aliases)
        results = run(*operands, plan=np.int64(call.plan))
        env.update(
            (value, result.astype(jax_dtype(t.dtype)))
            for value, result, t in zip(wanted, results, types)
        )

    # ---- what XLA does

    def _other(self, node: Node, args: Sequence[Array]) -> Sequence[Array]:
        """Returns the results of a node as JAX operations."""
        if node.op == "call":
            return self.block(node.blocks[0], args)
        if node.op == "cond":
            branches = [lambda xs, b=b: self.block(b, xs) for b in node.blocks]
            return lax.switch(args[0].astype(np.int32), branches, tuple(args[1:]))
        if node.op == "while":
            return self._loop(node, tuple(args))
        if node.op == "custom":
            device = "cpu" if self.steps.platform == "cpu" else "cuda"
            types = [ShapedArray(t.shape, jax_dtype(t.dtype)) for t in node.types]
            kernel, attributes = part("ops", "kernel-call")(node, device)
            return part("ops", "jax-kernel")(kernel, types, args, attributes)
        made = evaluate_node(node, dict(zip(node.args, args)), self.space)
        return made if isinstance(made, tuple) else (made,)

    def _loop(self, node: Node, args: tuple[Array, ...]) -> Sequence[Array]:
        test, body = node.blocks
        count = node.attrs.get("trip_count")
        if count is not None:
            return lax.fori_loop(0, int(count), lambda _, xs: self.block(body, xs), args)
        return lax.while_loop(
            lambda xs: self.block(test, xs)[0], lambda xs: self.block(body, xs), args
        )


def _in_bytes(dtype: Any) -> Any:
    """Returns the type of an array in a call: integers of 2 or 4 bits, of which XLA packs several
    into a byte, become integers of 8 bits.
    """
    if not jnp.issubdtype(dtype, jnp.integer) or jnp.iinfo(dtype).bits >= 8:
        return dtype
    return np.dtype(np.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else np.uint8)


def _parts(block: Block, steps: ForeignSteps) -> Iterator[tuple[bool, list[Node]]]:
    """Yields the executing nodes of a block in sequences; True for those that are custom calls."""
    nodes = [n for n in block.nodes if _executes(n)]
    for takes, group in groupby(nodes, steps.takes):
        yield takes, list(group)


def _executes(node: Node) -> bool:
    """True if a node is more than an alias, a selection, a constant or a parameter."""
    return behind(node) is node and not is_item(node) and node.op not in ("const", "param")


def _read_elsewhere(block: Block, own: set[Node]) -> Iterable[Value]:
    """Returns the values that other nodes of a block than `own` read, and its results."""
    others = (n for n in block.nodes if n not in own and _executes(n))
    read = [value_of(a) for n in others for a in n.args]
    return dict.fromkeys([*read, *(value_of(r) for r in block.results)])
