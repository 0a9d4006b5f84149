"""Kernels in Triton's interpreter: prints the largest error of each case, and what ran it, as JSON.

Run with TRITON_INTERPRET=1, in a process of its own: Triton reads it when it is imported. With
--all, all groups are run and not one of five, all attention variants with both lengths and types,
and rows go over several programs.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from gpu_cases import (
    EPILOGUES,
    JOINED,
    PRODUCTS,
    TURNED,
    epilogue_of,
    exact,
    floats,
    product_of,
    several,
)
from kernel_cases import CASES, Spec, group_of, program, random_array
from rounding_cases import chain, in_f32, numbers

import stack
from stack.backends.triton import BACKEND
from stack.ir import Builder, Func, Node
from stack.ir.data import decode, encode
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.run.compile import compile_func

OPTIONS = {"device": "cpu", "graph": False}
# Triton's interpreter has no functions of libdevice
PLAIN = (
    "neg", "abs", "sign", "not", "floor", "ceil", "sqrt", "rsqrt", "exp", "exp2", "log", "log2",
    "sin", "cos", "sigmoid", "erf", "tanh", "isnan", "isfinite", "add", "sub", "mul", "div",
    "max", "min", "and", "or", "xor", "shl", "shr", "rem",
)  # fmt: skip
Case = tuple[str, Func, list[np.ndarray], bool]


def error(found: np.ndarray, want: np.ndarray) -> float:
    """Relative to the largest result; infinite where nan, inf or whole numbers differ."""
    got, want = found.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if got.shape != want.shape or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    apart = np.abs(got[finite] - want[finite]).max() / max(1.0, np.abs(want[finite]).max())
    return float(apart) if apart == apart else math.inf


def every_op(dtype: str) -> Func:
    """All elementwise ops of a type that the interpreter knows, in one kernel."""
    kind = "b" if dtype == "bool" else dtype[0] if dtype != "bf16" else "f"

    def make(b: Builder, x: Node, y: Node) -> tuple[Node, ...]:
        ones = [n for n, (k, _, _) in UNARY.items() if kind in k and n in PLAIN]
        twos = [n for n, (k, _, _) in BINARY.items() if kind in k and n in PLAIN]
        if kind == "f":
            twos.remove("rem")
        made = [b.op(n, [x], {}) for n in ones]
        return (*made, *(b.op(n, [x, y], {}) for n in (*twos, *COMPARE)))

    return program(group_of(make, [(dtype, 6, 21), (dtype, 6, 21)]))


def elementwise() -> Iterator[Case]:
    rng = np.random.default_rng(5)
    for dtype in ("f32", "i32", "i64", "i8", "bool"):
        if dtype == "f32":
            x, y = (random_array((dtype, 6, 21), rng) for _ in "xy")
            x[0, :4], y[0, 2:6] = (np.inf, -np.inf, np.nan, 0), (np.nan, 1, np.inf, -0.0)
        elif dtype == "bool":
            x, y = (rng.integers(0, 2, (6, 21)) == 1 for _ in "xy")
        else:
            low = -70 if dtype[0] == "i" else 0
            x, y = (rng.integers(low, 70, (6, 21)).astype(decoded(dtype)) for _ in "xy")
            y[0, :5] = 0, 0, 1, 7, 31
        yield f"every op of {dtype}", every_op(dtype), [x, y], False


def decoded(dtype: str) -> Any:
    return np.dtype({"i": "int", "u": "uint"}[dtype[0]] + dtype[1:])


def groups() -> Iterator[Case]:
    rng = np.random.default_rng(6)
    for build, specs in (*CASES, *TURNED):
        if build.__name__.startswith(("running_max", "scatter")) or specs[0][0] == "f64":
            continue
        arrays = [random_array(s, rng) for s in specs]
        yield f"{build.__name__} {specs[0]}", program(group_of(build, specs)), arrays, True
    for rule, first, second in PRODUCTS:
        for dtype in ("f32", "bf16"):
            arrays = [floats(s, dtype, rng) for s in (first, second)]
            func = program(product_of(rule, first, second, dtype))
            yield f"{rule} {first} {dtype}", func, arrays, rule != "b s h d, n h d -> b s n"
    for build, shapes in EPILOGUES:
        arrays = [floats(s, "f32", rng) for s in shapes]
        group = epilogue_of(build, shapes, "f32")
        yield f"{build.__name__} {shapes[0]}", program(group), arrays, True
    for build, shapes in JOINED:
        for dtype in ("f32", "bf16"):
            arrays = [floats(s, dtype, rng) for s in shapes]
            group = epilogue_of(build, shapes, dtype)
            for tile in ("m=32@grid n=16@grid k=32@serial warps=4 stages=2 persistent", "apart"):
                attrs = {**group.attrs, "schedule": tile}
                taken = Node(group.op, group.args, attrs, group.type, group.blocks)
                name = f"joined {build.__name__} {shapes[0]} {dtype} {tile}"
                yield name, program(taken), arrays, True
    for dtype in ("f32", "bf16"):
        shapes = [(67, 300), (130, 300), (37, 300)]
        group = epilogue_of(beside, shapes, dtype)
        attrs = {**group.attrs, "schedule": "m=32 n=32 k=64 warps=4 stages=2"}
        taken = Node(group.op, group.args, attrs, group.type, group.blocks)
        arrays = [floats(s, dtype, rng) for s in shapes]
        yield f"side by side {dtype}", program(taken), arrays, True
    shapes = [(260, 32), (32, 520)]
    group = epilogue_of(clamped, shapes, "f32")
    yield "tiles in groups", program(group), [floats(s, "f32", rng) for s in shapes], True
    shapes = [(180, 32), (32, 400)]
    group = epilogue_of(clamped, shapes, "f32")
    for tail in ("m=16 n=32 persistent", "m=16+32 n=32+16 persistent", "m=16+16 n=32+16"):
        more = f"{tail} k=32 warps=4 stages=2"
        attrs = {**group.attrs, "schedule": more}
        taken = Node(group.op, group.args, attrs, group.type, group.blocks)
        arrays = [floats(s, "f32", rng) for s in shapes]
        yield f"tiles in turn {more}", program(taken), arrays, True


def beside(b: Builder, x: Node, first: Node, second: Node) -> tuple[Node, Node]:
    """Two products of one left operand, each with programs of its own."""
    y = b.dot(x, first, rule="m k, n k -> m n")
    return y, b.exp(b.dot(x, second, rule="m k, n k -> m n"))


def clamped(b: Builder, x: Node, w: Node) -> Node:
    """Its ops have the names of functions of Python."""
    y = b.dot(x, w, rule="m k, k n -> m n")
    return b.max(b.min(b.abs(y), b.const(0.5, "f32")), b.const(0.125, "f32"))


def constants(b: Builder, x: Node) -> tuple[Node, ...]:
    """Numbers of every type as what a store writes."""
    pairs = [(1.5, "bf16"), (-2.5, "f16"), (np.inf, "f64"), (-7, "i64"), (200, "u8"), (1, "bool")]
    seen = b.gt(x, 0.0)
    return tuple(b.select(seen, b.const(v, t), b.const(0, t)) for v, t in pairs)


def odd() -> Iterator[Case]:
    specs: list[Spec] = [("f32", 3, 20)]
    x = random_array(specs[0], np.random.default_rng(7))
    yield "constants of every type", program(group_of(constants, specs)), [x], True


def kernels(every: bool) -> Iterator[tuple[str, float, bool]]:
    some = islice(groups(), None, None, 1 if every else 5)
    for name, func, arrays, is_wide in (*elementwise(), *some, *odd()):
        run = compile_func(func, "triton", options=OPTIONS)
        stored = [encode(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
        found = [decode(f, r.dtype) for f, r in zip(run.run(stored), func.results, strict=True)]
        wanted = exact(func, arrays) if is_wide else several(func.interpret(*arrays))
        worst = max(error(got, want) for got, want in zip(found, wanted, strict=True))
        yield name, worst, all(k.kind == "generated" for k in run.kernels)


def precisions() -> Iterator[tuple[str, float, bool]]:
    """Precision of values between ops of a kernel, to the last bit; bf16 is truncated there."""
    func, arrays = chain("f16"), numbers("f16", np.random.default_rng(9))
    for excess in (False, True):
        run = compile_func(func, "triton", options={**OPTIONS, "excess_precision": excess})
        found = run.run(arrays)[0]
        want = in_f32(func, arrays, "f16") if excess else func.interpret(*arrays)
        is_ours = [k.kind for k in run.kernels] == ["generated"]
        yield f"excess precision: {excess}", error(found, want[0]), is_ours


def streams(every: bool) -> Iterator[tuple[str, float, bool]]:
    from stack.demos.gpu_attention import VARIANTS

    torch.manual_seed(8)
    forms = ((128, torch.bfloat16), (100, torch.float32))
    names = ("causal", "gqa", "window", "differential", "learned", "bias")
    for number, name in enumerate(names if every else names[::2]):
        chosen = forms if every and name != "bias" else (forms[name != "bias" and number % 2],)
        for seq, dtype in chosen:
            heads = 1 if name == "gqa" else 2
            q, k, v = (torch.randn(1, n, seq, 32).to(dtype) for n in (2, heads, heads))
            args: list[Any] = [q, k, v]
            if name == "bias":
                args.append(torch.randn(2, seq, seq).to(dtype))
            if name == "learned":
                args.append(torch.randn(2, 2 * seq - 1).to(dtype))
            if name == "differential":
                args = [q, k, torch.randn(q.shape).to(dtype), torch.randn(q.shape).to(dtype), v]
            program_: Callable[..., Any] = VARIANTS[name]
            made = stack.compile(program_, *args, backend="triton", **OPTIONS)
            want = program_(*(a.double() for a in args))
            found = made(*args)
            kinds = [k.kind for k in made.run.kernels]
            yield (
                f"{name} {seq} {dtype}",
                error(found.double().numpy(), want.numpy()),
                kinds == ["generated"],
            )


def few_rows(q: Any, k: Any, v: Any) -> Any:
    """One query for each of two heads of keys."""
    return torch.softmax(q @ k.mT / 4, -1) @ v


def horizontal_rows(q: Any, k: Any, v: Any) -> Any:
    """One more element for each row, and a mask that is finite; some rows see nothing else."""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = (q @ k.mT).masked_fill((j > i) | (i % 50 == 3), -1e9)
    rows = torch.nn.functional.pad(scores, (0, 1), value=-1e9)
    return torch.softmax(rows, -1)[..., :-1] @ v


def in_parts(every: bool) -> Iterator[tuple[str, float, bool]]:
    torch.manual_seed(9)
    passes = ",".join(p for name, p in BACKEND.lowering.stages if name in ("canonical", "laid-out"))
    passes += ",stream,split_reductions{parts=3},fuse,coalesce,schedule"
    for program_, rows, heads in ((few_rows, 1, 2), (horizontal_rows, *((20, 1), (100, 2))[every])):
        q, k, v = (torch.randn(1, heads, n, 32) for n in (rows, 200, 200))
        for spec in (passes, passes.replace(",split_reductions{parts=3}", "")):
            made = stack.compile(program_, q, k, v, backend="triton", passes=spec, **OPTIONS)
            want = program_(*(a.double() for a in (q, k, v)))
            kinds = {kernel.kind for kernel in made.run.kernels}
            is_split = "split" in spec
            few = len(made.run.kernels) == 1 + is_split
            found = made(q, k, v).double().numpy()
            name = f"{program_.__name__} {'parts' if is_split else 'whole'}"
            yield name, error(found, want.numpy()), few and kinds == {"generated"}


def main() -> int:
    warnings.simplefilter("ignore")  # nan and overflow are meant
    with np.errstate(all="ignore"):
        every = "--all" in sys.argv
        checked = (*kernels(every), *precisions(), *streams(every), *in_parts(every))
        found = {name: [worst, ours] for name, worst, ours in checked}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
