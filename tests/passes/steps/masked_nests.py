"""Sums of exponentials and attention under masks, as programs, for the tests of steps."""

from __future__ import annotations

from collections.abc import Sequence

from stream_nests import stream_in, streamed

from stack.ir import Func, Node
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.target import Target, as_gpu

TILES = "split i 4; split r 4; block r.1; vectorize r.1; vectorize i.1"  # of `rows`
FLASH = "split i 4; split r 4; block r.1; vectorize b; vectorize r.1; vectorize j; vectorize i.1"

# lines of a condition %t, which hides the score of row %i and key %j; {s} is the shape of scores
CAUSAL = "%t = gt(%j, %i) : bool{s}"
NEGATED = "%n = ge(%i, %j) : bool{s}; %t = not(%n) : bool{s}"
SHIFTED = "%h = add(%i, 5:i32) : i32{s}; %t = gt(%j, %h) : bool{s}"
BEFORE = "%h = sub(%i, 3:i32) : i32{s}; %t = gt(%j, %h) : bool{s}"  # the first rows lose all
WINDOW = (
    "%late = gt(%j, %i) : bool{s}; %h = sub(%i, %j) : i32{s}; "
    "%far = ge(%h, 5:i32) : bool{s}; %t = or(%late, %far) : bool{s}"
)
FIRST = "%t = lt(%j, 6:i32) : bool{s}"
HALF = "%h = add(%i, %j) : i32{s}; %t = gt(%h, 12:i32) : bool{s}"
TWICE = "%h = mul(%j, 2:i32) : i32{s}; %t = gt(%h, %i) : bool{s}"
LIMITS = {
    "causal": CAUSAL,
    "negated": NEGATED,
    "shifted": SHIFTED,
    "rows that lose all": BEFORE,
    "window": WINDOW,
    "first keys": FIRST,
    "half a sum": HALF,
    "twice the key": TWICE,
}
# conditions of data %b
LENGTH = ("i32{m}", "%n = broadcast(%b) {axes=[0]} : i32{s}; %t = ge(%j, %n) : bool{s}")
START = ("i32{m}", "%n = broadcast(%b) {axes=[0]} : i32{s}; %t = gt(%n, %j) : bool{s}")
# tiles of four keys have two blocks of two keys, or parts of blocks of three
BLOCKS = ("i32{m}", "%h = div(%j, 2:i32) : i32{s}; " + LENGTH[1].replace("%j", "%h"))
THIRDS = ("i32{m}", "%h = div(%j, 3:i32) : i32{s}; " + START[1].replace("%j", "%h"))
GIVEN = ("bool{s}", "%t = not(%b) : bool{s}")
BOTH = ("bool{s}", "%late = gt(%j, %i) : bool{s}; %t = or(%late, %b) : bool{s}")


def condition(mask: str, m: int, n: int) -> str:
    """The lines of a condition of rows and keys."""
    text = f"%i = iota() {{axis=0}} : i32{{s}}; %j = iota() {{axis=1}} : i32{{s}}; {mask}"
    return "".join(f"  {line}\n" for line in shaped(text, m, n).split("; "))


def shaped(text: str, m: int, n: int) -> str:
    """A text with the shapes of rows and of scores."""
    return text.replace("{s}", f"[{m}, {n}]").replace("{m}", f"[{m}]")


def rows(
    mask: str | tuple[str, str],
    m: int = 10,
    n: int = 11,
    fill: str = "-inf",
    more: str = "",
    results: str = "%l: f32{m}",
) -> str:
    """The sums %l of exponentials of masked rows %a; `more` are lines before the results."""
    s = f"[{m}, {n}]"
    data, lines = ("", mask) if isinstance(mask, str) else (f", %b: {mask[0]}", mask[1])
    names, types = zip(*(r.split(": ") for r in results.split("; ")), strict=True)
    return shaped(
        f"""func @f(%a: f32{s}{data}) -> ({", ".join(types)}) at tensor {{
{condition(lines, m, n)}  %x = select(%t, {fill}:f32, %a) : f32{s}
  %m = reduce(%x) {{axes=[1], kind="max"}} : f32[{m}]
  %w = broadcast(%m) {{axes=[0]}} : f32{s}
  %d = sub(%x, %w) : f32{s}
  %e = exp(%d) : f32{s}
  %l = reduce(%e) {{axes=[1], kind="sum"}} : f32[{m}]
{more}  return {", ".join(names)}
}}
""",
        m,
        n,
    )


def total(
    mask: str,
    m: int = 8,
    n: int = 8,
    fill: str = "0.0",
    more: str = "",
    results: str = "%y: f32{m}",
    kind: str = "sum",
) -> str:
    """The sums %y of masked rows %x; `more` are lines before the results."""
    names, types = zip(*(r.split(": ") for r in results.split("; ")), strict=True)
    given = ", ".join(types)
    return shaped(
        f"""func @f(%z: f32{{s}}) -> ({given}) at tensor {{
  %f = fusion(%z) {{kind="reduction", name="total"}} : {given if len(names) == 1 else f"({given})"}
    {{(%a: f32{{s}})
{condition(mask, m, n)}  %x = select(%t, {fill}:f32, %a) : f32{{s}}
  %y = reduce(%x) {{axes=[1], kind="{kind}"}} : f32{{m}}
{more}  return {", ".join(names)}
  }}
  {_items(names, types)}
}}
""",
        m,
        n,
    )


def _items(names: Sequence[str], types: Sequence[str]) -> str:
    """The last lines of a function that returns the results of a fusion %f."""
    if len(names) == 1:
        return "return %f"
    items = [f"%o{i} = item(%f) {{index={i}}} : {t}" for i, t in enumerate(types)]
    return "\n  ".join([*items, "return " + ", ".join(f"%o{i}" for i in range(len(names)))])


def attention(mask: str, m: int = 10, n: int = 11, width: int = 4, fill: str = "-inf") -> str:
    """Attention of one head; the scores are multiplied by 0.5."""
    s, q, k = f"[{m}, {n}]", f"[{m}, {width}]", f"[{n}, {width}]"
    return f"""func @f(%q: f32{q}, %k: f32{k}, %v: f32{k}) -> (f32{q}) at tensor {{
  %p = dot(%q, %k) {{rule="m d, n d -> m n"}} : f32{s}
  %a = mul(%p, 0.5:f32) : f32{s}
{condition(mask, m, n)}  %x = select(%t, {fill}:f32, %a) : f32{s}
  %m = reduce(%x) {{axes=[1], kind="max"}} : f32[{m}]
  %w = broadcast(%m) {{axes=[0]}} : f32{s}
  %d = sub(%x, %w) : f32{s}
  %e = exp(%d) : f32{s}
  %l = reduce(%e) {{axes=[1], kind="sum"}} : f32[{m}]
  %o = dot(%e, %v) {{rule="m n, n d -> m d"}} : f32{q}
  %u = broadcast(%l) {{axes=[0]}} : f32{q}
  %y = div(%o, %u) : f32{q}
  return %y
}}
"""


def nest(text: str, steps: str = "", target: Target | None = None) -> tuple[Func, Node]:
    """The stream of a program, and its nest after steps."""
    func = streamed(text)
    kernel = plain_nest(stream_in(func), target or as_gpu(None))
    return func, run_steps(kernel, parse_steps(steps))


def masked_streams() -> list[tuple[Func, Node]]:
    """Streams under masks with their plain loop nests; small enough to be interpreted."""
    texts = [rows(mask, 6, 7) for mask in LIMITS.values()]
    texts += [rows(mask, 6, 8, "-1e9") for mask in (CAUSAL, WINDOW, BEFORE)]
    texts += [rows(mask, 6, 7) for mask in (GIVEN, BOTH, LENGTH)]
    texts += [attention(CAUSAL, 4, 6, 2), attention(WINDOW, 8, 8, 2, "-1e9")]
    return [nest(text) for text in texts]
