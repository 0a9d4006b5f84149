"""Kernels of scatters: rows as vectors, axes that no index names apart, updates in their order."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import program, tile_group

from stack.ir import Func, Node, parse, verify
from stack.passes.distribute import distribute_kernel
from stack.passes.tiling.single_ops import alone
from stack.passes.updates import Update, copied, in_place
from stack.rewrite.pipeline import Pipeline
from stack.target import load

Shape = tuple[str, tuple[int, ...], tuple[int, ...]]
SHAPES: dict[str, Shape] = {
    "rows": ("v! d, n, n d -> v! d", (7, 70), (9, 70)),
    "rows of one element": ("v! d, n, n d -> v! d", (7, 1), (9, 1)),
    "short rows": ("v! d, n, n d -> v! d", (7, 5), (9, 5)),
    "rows of rows": ("v! a d, n, n a d -> v! a d", (7, 3, 66), (9, 3, 66)),
    "an axis before": ("a v! d, n, a n d -> a v! d", (3, 7, 66), (3, 9, 66)),
    "an axis before, last of the updates": ("a v! d, n, n d a -> a v! d", (3, 7, 66), (9, 66, 3)),
    "the last axis": ("a v!, n, a n -> a v!", (3, 7), (3, 9)),
    "a place for each element": ("v! d, n d, n d -> v! d", (7, 70), (9, 70)),
    "a place in each line": ("a v!, a n, a n -> a v!", (3, 7), (3, 9)),
    "a line": ("v!, n, n -> v!", (70,), (9,)),
    "two axes of places": ("v! d, n m, n m d -> v! d", (7, 66), (2, 4, 66)),
}


def scatter(case: Shape, kind: str, t: str) -> Func:
    """A scatter of the operand's negation, with the index that the rule asks for."""
    rule, shape, updates = case
    inputs = rule.split(" -> ")[0].split(", ")
    sizes = dict(zip(inputs[-1].split(), updates, strict=True))
    index = ", ".join(str(sizes[n]) for n in inputs[1].split())
    x, u = (", ".join(map(str, s)) for s in (shape, updates))
    return parse(
        f"func @main(%x: {t}[{x}], %i: i64[{index}], %u: {t}[{u}]) -> ({t}[{x}]) at tensor {{\n"
        f'  %z = scatter(%x, %i, %u) {{kind="{kind}", rule="{rule}"}} : {t}[{x}]\n'
        "  return %z\n}\n"
    )


def expected(
    rule: str, kind: str, x: np.ndarray, index: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    """Updates one after another, in f64."""
    target, own, given = (o.split() for o in rule.split(" -> ")[0].split(", "))
    made = x.astype(np.float64) if x.dtype.kind == "f" else x.copy()
    combine = {"set": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum}[kind]
    for at in np.ndindex(updates.shape):
        here = dict(zip(given, at, strict=True))
        named = index[tuple(here[n] for n in own)]
        place = tuple(named if n.endswith("!") else here[n] for n in target)
        made[place] = combine(made[place], updates[at])
    return made


@pytest.mark.every(5)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("add", "f32"), ("set", "f32"), ("max", "f64"), ("mul", "i32"), ("add", "i64"), ("set", "u8")],
)
def test_levels_agree(name: str, kind: str, dtype: str, rng: np.random.Generator) -> None:
    rule, shape, updates = SHAPES[name]
    func = scatter(SHAPES[name], kind, dtype)
    types = [p.tensor for p in func.params]
    x, u = (rng.integers(0, 9, size=s).astype(types[0].dtype.numpy) for s in (shape, updates))
    extent = next(s for s, n in zip(shape, rule.split(",")[0].split()) if n.endswith("!"))
    index = rng.integers(0, extent, size=types[1].shape)  # more updates than places: some meet
    if u.dtype.kind == "f":
        x[..., 0], u[..., -1] = np.nan, np.inf
    (node,) = func.body.results
    tiled = [tile_group(alone(node), load(cpu)) for cpu in ("avx512", "generic")]
    want = expected(rule, kind, x, index, u)
    for kernel in tiled:
        made = program(kernel)
        verify(made)
        assert parse(str(made)) is made
        np.testing.assert_array_equal(made.interpret(x, index, u), want.astype(x.dtype))


def test_rows_are_vectors_and_axes_apart_are_programs() -> None:
    func = scatter(SHAPES["an axis before"], "add", "f32")
    text = str(program(tile_group(alone(func.body.results[0]), load("avx2"))))
    assert text.count('kind="parallel"') == 1
    assert "f32<32>" in text and "f32<2>" in text and "f32[]" not in text


def test_loops_go_along_rows_one_after_another() -> None:
    func = scatter(SHAPES["rows"], "add", "f32")
    text = str(program(tile_group(alone(func.body.results[0]), load("avx2"))))
    heads = [line.split("(%")[-1].split(", ")[0] for line in text.split("\n") if "kind=" in line]
    assert [h.split(" < ")[1] for h in heads] == ["7", "2", "9", "2"]


@pytest.mark.parametrize("name", ["rows", "an axis before", "the last axis", "a line"])
def test_the_copy_can_be_left_out(name: str, rng: np.random.Generator) -> None:
    func = scatter(SHAPES[name], "add", "f32")
    kernel = distribute_kernel(tile_group(alone(func.body.results[0])))
    found = copied(kernel)
    assert found is not None and found.operand == 0
    made = program(in_place(kernel, Update(0)))
    verify(made)
    assert "%p0," not in str(made).split("{(", 1)[1].split("\n", 1)[1]


ROW = '%k = kernel(%x) {level="loop", name="k", ops=["exp"]} : f32[8] {(%p0: f32[8] in global, '


def kernel(body: str) -> Node:
    text = (
        "func @main(%x: f32[8]) -> (f32[8]) at tensor {\n  "
        f"{ROW}%o0: f32[8] in global)\n{body}  return %b\n}}\n  return %k\n}}\n"
    )
    return parse(text).body.results[0]


COPY = "%v = load(%p0, 0:i64) : f32<4>\n%a = store(%o0, %v, 0:i64) : f32[8] in global\n"


REST = "%q = load(%p0, 4:i64) : f32<4>\n%r = store(%a, %q, 4:i64) : f32[8] in global\n"
FILL = "%b = store(%a, 1.0:f32, 5:i64) : f32[8] in global\n"
MOVED = "%w = load(%p0, 1:i64) : f32<4>\n%b = store(%a, %w, 4:i64) : f32[8] in global\n"
AGAIN = FILL.replace("%b", "%c") + MOVED.replace("store(%a", "store(%c")
COPIES = {
    "some of it": (COPY + FILL, True),
    "in two parts": (COPY + REST + FILL.replace("%a", "%r"), True),
    "it is read before the only store": (COPY + MOVED, True),
    "it is read after stores": (COPY + AGAIN, False),
    "from another place": (COPY.replace("(%p0, 0", "(%p0, 1") + FILL, False),
}


@pytest.mark.parametrize(("body", "is_copied"), COPIES.values(), ids=COPIES)
def test_what_is_a_copy(body: str, is_copied: bool) -> None:
    assert (copied(kernel(body)) is not None) == is_copied


LOWERED = "fuse,coalesce,schedule{loops=cpu},tile,library,distribute,memory"
PRODUCED = """func @main(%i: i64[9], %g: f32[9, 40], %m: bool[9]) -> (f32[7, 40]) at tensor {
  %o = broadcast(0.0:f32) {axes=[]} : f32[7, 40]
  %w = broadcast(%m) {axes=[0]} : bool[9, 40]
  %u = select(%w, 0.0:f32, %g) : f32[9, 40]
  %z = scatter(%o, %i, %u) {kind="add", rule="v! d, n, n d -> v! d"} : f32[7, 40]
  return %z
}
"""


@pytest.mark.parametrize("is_read", [False, True])
def test_what_is_made_for_a_scatter_alone_is_made_in_it(
    is_read: bool, rng: np.random.Generator
) -> None:
    text = PRODUCED
    if is_read:
        text = text.replace("return %z", "return %z, %u").replace("40]) at", "40], f32[9, 40]) at")
    func = parse(text)
    made = Pipeline(LOWERED).run(func).func
    names = [str(n.attrs["name"]) for n in made.nodes if n.op == "kernel"]
    assert ("select_scatter" in names[-1]) != is_read, names
    args = [rng.integers(0, 7, size=9), rng.normal(size=(9, 40)).astype(np.float32)]
    mask = rng.integers(0, 2, size=9).astype(bool)
    want, found = (f.interpret(*args, mask) for f in (func, made))
    want, found = (r[0] if isinstance(r, tuple) else r for r in (want, found))
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


PASSED = """func @main(%h: f32[7, 40], %a: i64[9], %b: i64[9]) -> (f32[7, 40]) at tensor {
  %x = neg(%h) : f32[7, 40]
  %u = gather(SOURCE, %a) {rule="v! d, n -> n d"} : f32[9, 40]
  %z = scatter(%x, %b, %u) {kind="add", rule="v! d, n, n d -> v! d"} : f32[7, 40]
  return %z
}
"""


@pytest.mark.parametrize(
    ("source", "count", "name", "is_in_place"),
    [
        ("%h", 9, "gather_scatter", True),
        ("%x", 9, "gather_scatter", False),
        ("%x", 3, "scatter", True),
    ],
)
def test_rows_go_from_place_to_place(
    source: str, count: int, name: str, is_in_place: bool, rng: np.random.Generator
) -> None:
    """Gathered rows are read where they are added. Where the sums would overwrite them, the copy
    that takes less is made: of the rows, or of all elements."""
    func = parse(PASSED.replace("SOURCE", source).replace("[9", f"[{count}"))
    made = Pipeline(LOWERED).run(func).func
    kernels = [n for n in made.nodes if n.op == "kernel"]
    assert [str(n.attrs["name"]) for n in kernels][-1] == name
    assert ("updates" in kernels[-1].attrs) == is_in_place
    h = rng.normal(size=(7, 40)).astype(np.float32)
    index = [rng.integers(0, 7, size=count) for _ in range(2)]
    want, found = (f.interpret(h, *index) for f in (func, made))
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_what_has_no_kernel_stays_apart() -> None:
    text = PRODUCED.replace("%u = select(%w, 0.0:f32, %g)", "%u = digamma(%g)")
    passes = LOWERED.replace("tile", "tile{refuse=[digamma]}")
    made = Pipeline(passes).run(parse(text)).func
    assert [n.attrs["kind"] for n in made.nodes if n.op == "fusion"] == ["library"]
    assert [n.attrs["ops"] for n in made.nodes if n.op == "kernel"][-1] == ("scatter",)
