"""One check for every JAX test: import, verify, print and parse, run twice, compare with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stack.frontends.jax import FRONTEND
from stack.frontends.jax.jaxpr.element_words import to_words
from stack.frontends.jax.replay.space import replay, x64
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.parser import parse
from stack.ir.types import BF16
from stack.ir.verifier import verify
from stack.run.frontend import Captured

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
TOLERANCE |= {"complex64": 2e-5, "complex128": 1e-12}


def all_nodes(func: Func) -> list[Node]:
    """Nodes of the body and of every block inside."""
    found: list[Node] = []
    pending = [func.body]
    while pending:
        block = pending.pop()
        found.extend(block.nodes)
        pending.extend(b for n in block.nodes for b in n.blocks)
    return found


def fallbacks(func: Func) -> list[str]:
    """Targets of the opaque nodes."""
    return [str(n.attrs["target"]) for n in all_nodes(func) if n.op == "opaque"]


def held(array: Any) -> np.ndarray:
    """As the interpreter holds it: bf16 as float32, keys and complex numbers as words."""
    out = np.asarray(to_words(array) if hasattr(array, "dtype") else array)
    return out.astype(np.float32) if out.dtype.name == "bfloat16" else out


def interpret(captured: Captured, args: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Results in the reference interpreter."""
    out = captured.func.interpret(*map(held, [*captured.bound, *captured.flatten(*args)]))
    return out if isinstance(out, tuple) else (out,)


def replayed(captured: Captured, args: tuple[Any, ...]) -> list[Any]:
    """Results of the replay in JAX, under jit."""
    func = captured.func
    arrays = [*captured.bound, *captured.flatten(*args)]
    if func.symbols:
        func = func.bind(func.sizes([np.shape(a) for a in arrays]))
    with x64(func):
        return list(jax.jit(replay(func))(*arrays))


def compare(got: Any, want: Any, tolerance: float | None, what: str) -> None:
    """Same shape, same type, near values; nan equals nan."""
    wanted = held(want)
    assert np.shape(got) == wanted.shape, (what, np.shape(got), wanted.shape)
    assert held(got).dtype == wanted.dtype, (what, got.dtype, wanted.dtype)
    name = getattr(want, "dtype", wanted.dtype)
    limit = tolerance if tolerance is not None else TOLERANCE.get(str(name), 0)
    np.testing.assert_allclose(held(got), wanted, rtol=limit, atol=limit, err_msg=what)


def expected(fn: Callable[..., Any], *args: Any) -> Any:
    """Results of JAX, from one program: op by op, XLA would compile each."""
    return jax.jit(fn)(*args)


def check(
    fn: Callable[..., Any],
    *args: Any,
    tolerance: float | None = None,
    opaque: list[str] | None = None,
    replay_too: bool = True,
) -> Captured:
    """Import `fn`; the interpreter and the replay agree with JAX; only `opaque` falls back."""
    captured = FRONTEND.capture(fn, args)
    verify(captured.func)
    assert parse(str(captured.func)) is captured.func
    assert sorted(set(fallbacks(captured.func))) == sorted(opaque or [])
    want = expected(fn, *args)
    leaves = jax.tree_util.tree_leaves(want)
    runs = {"interpreter": list(interpret(captured, args))}
    if replay_too:
        runs["replay"] = replayed(captured, args)
    for what, results in runs.items():
        assert len(results) == len(leaves)
        for got, wanted in zip(results, leaves, strict=True):
            compare(got, wanted, tolerance, what)
    structure = jax.tree_util.tree_structure(captured.unflatten(runs["interpreter"]))
    assert structure == jax.tree_util.tree_structure(want)
    return captured


def storage(array: Any) -> Any:
    """Converts an array to what a compiled program takes."""
    dtype = FRONTEND.capture(lambda x: x, (array,)).func.params[0].dtype
    return FRONTEND.to_numpy(array, dtype), dtype, dtype is BF16
