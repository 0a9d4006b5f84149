"""Streams as plain loop nests, for the tests of steps."""

from __future__ import annotations

from nest_cases import around

from stack.ir import Func, Node, parse
from stack.ir.builder import make
from stack.passes.policies.step_lowering import plain_nest
from stack.rewrite import Pipeline
from stack.target import Target, as_gpu


def exps(rows: int, size: int) -> str:
    """The exponentials %e of rows %x, with their maximum subtracted, and their sums %l."""
    return f"""  %m = reduce(%x) {{axes=[1], kind="max"}} : f32[{rows}]
  %w = broadcast(%m) {{axes=[0]}} : f32[{rows}, {size}]
  %s = sub(%x, %w) : f32[{rows}, {size}]
  %e = exp(%s) : f32[{rows}, {size}]
  %l = reduce(%e) {{axes=[1], kind="sum"}} : f32[{rows}]
"""


def softmax(rows: int, size: int) -> str:
    """A softmax of rows."""
    return f"""func @f(%x: f32[{rows}, {size}]) -> (f32[{rows}, {size}]) at tensor {{
{exps(rows, size)}  %v = broadcast(%l) {{axes=[0]}} : f32[{rows}, {size}]
  %y = div(%e, %v) : f32[{rows}, {size}]
  return %y
}}
"""


def sums(rows: int, size: int) -> str:
    """The sums of the exponentials of rows."""
    return f"""func @f(%x: f32[{rows}, {size}]) -> (f32[{rows}]) at tensor {{
{exps(rows, size)}  return %l
}}
"""


def attention(rows: int, keys: int, width: int, dtype: str = "f32", results: str = "%y") -> str:
    """Attention of two heads: results %y, and %z, the logarithms of the sums of exponentials."""
    q, k, s = f"[2, {rows}, {width}]", f"[2, {keys}, {width}]", f"[2, {rows}, {keys}]"
    types = {"%y": f"{dtype}{q}", "%z": f"f32[2, {rows}]"}
    given = ", ".join(types[name] for name in results.split(", "))
    return f"""func @f(%q: {dtype}{q}, %k: {dtype}{k}, %v: {dtype}{k}) -> ({given}) at tensor {{
  %s = dot(%q, %k) {{rule="b m d, b n d -> b m n"}} : f32{s}
  %m = reduce(%s) {{axes=[2], kind="max"}} : f32[2, {rows}]
  %w = broadcast(%m) {{axes=[0, 1]}} : f32{s}
  %d = sub(%s, %w) : f32{s}
  %e = exp(%d) : f32{s}
  %l = reduce(%e) {{axes=[2], kind="sum"}} : f32[2, {rows}]
  %p = cast(%e) : {dtype}{s}
  %o = dot(%p, %v) {{rule="b m n, b n d -> b m d"}} : f32{q}
  %u = broadcast(%l) {{axes=[0, 1]}} : f32{q}
  %t = div(%o, %u) : f32{q}
  %y = cast(%t) : {dtype}{q}
  %g = log(%l) : f32[2, {rows}]
  %z = add(%g, %m) : f32[2, {rows}]
  return {results}
}}
"""


VARIANCE = """func @f(%x: f32[3, 8]) -> (f32[3]) at tensor {
  %t = reduce(%x) {axes=[1], kind="sum"} : f32[3]
  %m = mul(%t, 0.125:f32) : f32[3]
  %w = broadcast(%m) {axes=[0]} : f32[3, 8]
  %d = sub(%x, %w) : f32[3, 8]
  %q = mul(%d, %d) : f32[3, 8]
  %y = reduce(%q) {axes=[1], kind="sum"} : f32[3]
  return %y
}
"""
PROGRAMS = {
    "softmax": softmax(3, 7),
    "sums": sums(2, 8),
    "attention": attention(3, 5, 4),
    "attention, logarithms": attention(2, 4, 3, results="%y, %z"),
    "attention, f16": attention(2, 6, 4, "f16"),
    "variance": VARIANCE,
}


def streamed(text: str) -> Func:
    """The stream that a program becomes, alone."""
    func = Pipeline("canonicalize,stream{min_axis=2}").run(parse(text)).func
    (stream,) = (n for n in func.nodes if n.op == "stream")
    return around(stream)


def stream_in(func: Func) -> Node:
    """The only stream of a function."""
    (stream,) = (n for n in func.nodes if n.op == "stream")
    return stream


def in_parts(func: Func, part: int) -> Func:
    """The same stream, whose states are computed for each part of the axis."""
    stream = stream_in(func)
    attrs = {**stream.attrs, "part": part}
    return around(make("stream", stream.args, attrs, stream.blocks))


def stream_nests(target: Target | None = None) -> list[tuple[Func, Node]]:
    """Streams with their plain loop nests; small enough to be interpreted."""
    found = [streamed(text) for text in PROGRAMS.values()]
    return [(func, plain_nest(stream_in(func), target or as_gpu(None))) for func in found]
