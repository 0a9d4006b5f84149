"""Factors beside the sharding rules that Shardy gives the same nodes."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import passmanager
from op_instances import instance

from stack.frontends.jax.replay.space import JaxSpace
from stack.ir import Block, Builder, Node, param, tensor
from stack.ir.interpreter import evaluate
from stack.passes.sharding.factors import factors_of

SHARED = (
    "add", "exp", "select", "cast", "dot", "reduce", "transpose", "broadcast", "reshape",
    "reverse", "concat", "sort", "slice", "pad", "conv",
)  # fmt: skip
# Where rules differ, and why; all of it is about dims that a window makes or reads one element of.
EXPLAINED = {
    "slice": "one element of a dim: Shardy's factor has the elements of the operand, so a result of"
    " one would be split; ours has those of the result, and every rank takes the element",
    "pad": "a dim of one element made longer: Shardy's factor has one and is never split; ours has"
    " those of the result, of which each rank makes its part without a message",
}
Shape = tuple[tuple[tuple[int, ...], ...], ...]


def theirs(node: Node, arrays: list[np.ndarray]) -> tuple[Shape, frozenset[int]] | None:
    """Dims in factors that Shardy may split, numbered as they come; None without a single op."""
    block = Block(node.args, (node,))
    lowered = jax.jit(lambda *args: evaluate(block, args, JaxSpace())).lower(*arrays)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        pipeline = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
        passmanager.PassManager.parse(pipeline).run(module.operation)
        main = next(op for op in module.body.operations if "main" in str(op.attributes["sym_name"]))
        work = [
            op
            for op in main.regions[0].blocks[0].operations
            if op.operation.name not in ("func.return", "stablehlo.constant")
        ]
        if len(work) != 1 or "sdy.sharding_rule" not in work[0].attributes:
            return None
        text = str(work[0].attributes["sdy.sharding_rule"])
        params = list(main.regions[0].blocks[0].arguments)
        order = [params.index(o) if o in params else -1 for o in work[0].operands]
    found = re.search(r"<\((.*?)\)->\((.*?)\)(.*)>", text)
    assert found is not None
    sizes = dict(re.findall(r"(\w+)=(\d+)", found[3]))
    stopped = {
        name
        for kind in ("need_replication", "blocked_propagation")
        for names in re.findall(kind + r"=\{(.*?)\}", found[3])
        for name in names.split(", ")
    }
    reduced = {
        n for names in re.findall(r"reduction=\{(.*?)\}", found[3]) for n in names.split(", ")
    }
    read, made = (re.findall(r"\[(.*?)\]", side) for side in found.groups()[:2])
    by_param = {p: dims for p, dims in zip(order, read, strict=True) if p >= 0}
    if sorted(by_param) != list(range(len(node.args))):
        return None
    values = [by_param[i] for i in range(len(node.args))] + made
    dims = [
        [re.findall(r"[a-z](?:_\d+)?", dim) for dim in value.split(", ") if dim] for value in values
    ]
    keep = {n for n, size in sizes.items() if size != "1"} - stopped
    return _numbered(dims, keep, reduced)


def ours(node: Node) -> tuple[Shape, frozenset[int]]:
    factors = factors_of(node)
    keep = {name for name, size in factors.sizes.items() if size != 1} - factors.fixed
    return _numbered([list(map(list, v)) for v in factors.values], keep, factors.reduced)


def is_explained(node: Node, found: tuple[Shape, frozenset[int]]) -> bool:
    """True if rules differ only in dims of one element here, and of several there."""
    if node.op not in EXPLAINED:
        return False
    sizes = zip(node.args[0].shape, node.shape, strict=True)
    single = {dim for dim, (read, made) in enumerate(sizes) if 1 in (read, made)}

    def others(rule: tuple[Shape, frozenset[int]]) -> Any:
        kept = [[d for i, d in enumerate(value) if i not in single] for value in rule[0]]
        return _numbered(kept, {f for value in kept for dim in value for f in dim}, rule[1])

    return others(found) == others(ours(node))


def _numbered(values: Any, keep: set[Any], reduced: Any) -> tuple[Shape, frozenset[int]]:
    number: dict[Any, int] = {}
    shape = tuple(
        tuple(tuple(number.setdefault(f, len(number)) for f in dim if f in keep) for dim in value)
        for value in values
    )
    return shape, frozenset(number[n] for n in reduced if n in number)


def reshape(rng: random.Random) -> tuple[Node, list[np.ndarray]]:
    """Splits and merges of two shapes with any borders."""
    parts = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(2, 4))]

    def shape() -> list[int]:
        cuts = sorted(rng.sample(range(1, len(parts)), rng.randint(0, len(parts) - 1)))
        return [math.prod(parts[a:b]) for a, b in itertools.pairwise([0, *cuts, len(parts)])]

    x = param("x", tensor("f32", *shape()))
    array = np.zeros([int(str(n)) for n in x.shape], np.float32)
    return Builder().reshape(x, type=tensor("f32", *shape())), [array]


def test_same_factors() -> None:
    """At least 90 % of the nodes have the same factors, and the same of them are reduced.

    The rest has a reason in the table, and each reason has a node.
    """
    seen: Counter[str] = Counter()
    same: Counter[str] = Counter()
    other: set[str] = set()
    for op in SHARED:
        rng = random.Random(f"shardy {op}")
        for _ in range(60):
            made = instance(op, rng)
            if op == "reshape":
                made = reshape(rng)
            if made is None or seen[op] >= 12 or not all(np.asarray(a).size for a in made[1]):
                continue
            if any(a.dtype.name == "bf16" for a in made[0].args):
                continue  # more than one op if it is computed in f32
            found = theirs(*made)
            if found is None:
                continue
            seen[op] += 1
            same[op] += found == ours(made[0])
            if found != ours(made[0]):
                assert is_explained(made[0], found), f"{made[0]}: {ours(made[0])}, Shardy {found}"
                other.add(op)
    for op, count in seen.items():
        print(f"{op}: {same[op]} of {count} the same; {EXPLAINED.get(op, '')}")
    print(f"{same.total()} of {seen.total()}")
    assert len(seen) >= 10
    assert same.total() >= 0.9 * seen.total()
    assert other == set(EXPLAINED)
