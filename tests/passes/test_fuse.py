"""fuse: which ops become one group, which do not, and what the record says about it."""

from __future__ import annotations

import pytest
from rule_cases import func

from stack.ir import Builder, Func, Node, param, parse, tensor
from stack.passes import fuse
from stack.rewrite import Pipeline
from stack.rewrite.fusion import Grouping
from stack.rewrite.group import Group
from stack.rewrite.pipeline import Record

X = "%x: f32[64, 128]"
CHAIN = """%a = exp(%x) : f32[64, 128]
%b = neg(%a) : f32[64, 128]
%c = tanh(%b) : f32[64, 128]
%z = mul(%c, %x) : f32[64, 128]"""
SOFTMAX = """%m = reduce(%x) {axes=[1], kind="max"} : f32[64]
%mb = broadcast(%m) {axes=[0]} : f32[64, 128]
%d = sub(%x, %mb) : f32[64, 128]
%e = exp(%d) : f32[64, 128]
%s = reduce(%e) {axes=[1], kind="sum"} : f32[64]
%sb = broadcast(%s) {axes=[0]} : f32[64, 128]
%z = div(%e, %sb) : f32[64, 128]"""
LAYER_NORM = """%s = reduce(%x) {axes=[1], kind="sum"} : f32[64]
%mean = mul(%s, 0.0078125:f32) : f32[64]
%mb = broadcast(%mean) {axes=[0]} : f32[64, 128]
%d = sub(%x, %mb) : f32[64, 128]
%sq = mul(%d, %d) : f32[64, 128]
%ss = reduce(%sq) {axes=[1], kind="sum"} : f32[64]
%var = mul(%ss, 0.0078125:f32) : f32[64]
%eps = add(%var, 0.00001:f32) : f32[64]
%r = rsqrt(%eps) : f32[64]
%rb = broadcast(%r) {axes=[0]} : f32[64, 128]
%n = mul(%d, %rb) : f32[64, 128]
%wb = broadcast(%w) {axes=[1]} : f32[64, 128]
%nw = mul(%n, %wb) : f32[64, 128]
%bb = broadcast(%b) {axes=[1]} : f32[64, 128]
%z = add(%nw, %bb) : f32[64, 128]"""
LINEAR = "%x: f32[64, 32], %w: f32[32, 128], %b: f32[128]"
GELU = """%d = dot(%x, %w) {rule="m k, k n -> m n"} : f32[64, 128]
%bb = broadcast(%b) {axes=[1]} : f32[64, 128]
%h = add(%d, %bb) : f32[64, 128]
%u = mul(%h, 0.70710677:f32) : f32[64, 128]
%e = erf(%u) : f32[64, 128]
%o = add(%e, 1.0:f32) : f32[64, 128]
%v = mul(%h, 0.5:f32) : f32[64, 128]
%z = mul(%v, %o) : f32[64, 128]"""


def run(source: Func, options: str = "") -> Record:
    return Pipeline(f"fuse{options}").run(source, check=True).records[0]


def groups(record: Record) -> list[Node]:
    return [n for n in record.after.nodes if n.op == "fusion"]


def kinds(record: Record) -> list[str]:
    return [str(n.attrs["kind"]) for n in groups(record)]


def bare(record: Record) -> set[str]:
    return {n.op for n in record.after.nodes} - {"fusion", "param", "const", "item"}


@pytest.mark.parametrize(
    ("params", "lines", "kind"),
    [
        (X, CHAIN, "loop"),
        (X, SOFTMAX, "reduction"),
        (f"{X}, %w: f32[128], %b: f32[128]", LAYER_NORM, "reduction"),
        (LINEAR, GELU, "gemm"),
    ],
    ids=["chain", "softmax", "layer norm", "linear gelu"],
)
def test_one_group(params: str, lines: str, kind: str) -> None:
    record = run(func(params, lines))
    assert kinds(record) == [kind]
    assert not bare(record)
    assert [f.kind for f in record.formed] == [kind]


def test_without_epilogues_the_dot_is_bare() -> None:
    record = run(func(LINEAR, GELU), "{epilogue=false}")
    assert kinds(record) == ["loop"]
    assert bare(record) == {"dot"}


def test_two_dots_are_two_groups() -> None:
    lines = """%d = dot(%x, %w) {rule="m k, k n -> m n"} : f32[64, 64]
%e = exp(%d) : f32[64, 64]
%f = dot(%e, %w) {rule="m k, n k -> m n"} : f32[64, 64]
%z = tanh(%f) : f32[64, 64]"""
    record = run(func("%x: f32[64, 64], %w: f32[64, 64]", lines))
    assert kinds(record) == ["gemm", "gemm"]
    assert [[n.op for n in g.blocks[0].nodes] for g in groups(record)] == [
        ["dot", "exp"],
        ["dot", "tanh"],
    ]
    assert "a dot reads its operands from memory" in {r.reason for r in record.refused}


def test_reductions_over_different_axes_stay_apart() -> None:
    lines = """%m = reduce(%x) {axes=[1], kind="max"} : f32[64]
%mb = broadcast(%m) {axes=[0]} : f32[64, 128]
%d = sub(%x, %mb) : f32[64, 128]
%z = reduce(%d) {axes=[0], kind="sum"} : f32[128]"""
    record = run(func(X, lines))
    held = [
        {n.attrs["axes"] for n in g.blocks[0].nodes if n.op == "reduce"} for g in groups(record)
    ]
    assert sorted(len(axes) for axes in held) == [1, 1]
    assert [(r.producer, r.consumer) for r in record.refused] == [("%m", "%z")]
    assert "the two reductions run over different axes" in record.refused[0].reason


def test_a_column_that_is_read_again_after_its_reduction_stays_apart() -> None:
    lines = """%m = reduce(%x) {axes=[0], kind="max"} : f32[128]
%mb = broadcast(%m) {axes=[1]} : f32[64, 128]
%d = sub(%x, %mb) : f32[64, 128]
%z = reduce(%d) {axes=[0], kind="sum"} : f32[128]"""
    record = run(func(X, lines))
    assert kinds(record) == ["reduction", "reduction"]
    assert [r.reason for r in record.refused] == [
        "the reduced axis is not innermost and values after it need it"
    ]


def test_no_cycle_through_a_dot_between_two_readers() -> None:
    source = parse("""func @main(%x: f32[64, 64], %w: f32[64, 64]) -> (f32[64, 64]) at tensor {
  %a = exp(%x) : f32[64, 64]
  %near = tanh(%a) : f32[64, 64]
  %d = dot(%near, %w) {rule="m k, k n -> m n"} : f32[64, 64]
  %far = sub(%d, %a) : f32[64, 64]
  return %far
}
""")
    record = run(source)
    first, second = groups(record)
    assert {n.op for n in first.blocks[0].nodes} == {"exp", "tanh"}
    assert {n.op for n in second.blocks[0].nodes} == {"dot", "sub"}
    assert not bare(record)


def test_max_nodes() -> None:
    record = run(func(X, CHAIN), "{max_nodes=2}")
    sizes = [len([n for n in g.blocks[0].nodes if n.op != "neg"]) for g in groups(record)]
    assert len(sizes) > 1
    assert max(sizes) <= 2
    assert any("at most 2 are allowed" in r.reason for r in record.refused)


def test_max_inputs() -> None:
    names = ["%a", "%b", "%c", "%d"]
    params = ", ".join(f"{n}: f32[64, 128]" for n in names)
    lines = """%p = add(%a, %b) : f32[64, 128]
%q = add(%p, %c) : f32[64, 128]
%z = add(%q, %d) : f32[64, 128]"""
    assert kinds(run(func(params, lines))) == ["loop"]
    record = run(func(params, lines), "{max_inputs=2}")
    assert [len(g.args) for g in groups(record)] == [2, 2, 2]
    assert {r.reason for r in record.refused} == {"3 inputs, at most 2 are allowed"}


def test_memory_holds_the_shorter_of_two_floats() -> None:
    """A value that is cast to 16 bits before a split is written so, not computed by each part."""
    made = parse(
        """func @main(%x: f32[4, 8], %w: f32[8, 8]) -> (bf16[4, 3], bf16[4, 5]) at tensor {
          %d = dot(%x, %w) {rule="m k, k n -> m n"} : f32[4, 8]
          %e = exp(%d) : f32[4, 8]
          %c = cast(%e) : bf16[4, 8]
          %y = slice(%c) {start=[0, 0], limit=[4, 3], step=[1, 1]} : bf16[4, 3]
          %z = slice(%c) {start=[0, 3], limit=[4, 8], step=[1, 1]} : bf16[4, 5]
          return %y, %z
        }"""
    )
    fused = Pipeline("fuse").run(made, check=True).func
    groups = [n for n in fused.nodes if n.op == "fusion"]
    assert {str(n.type) for n in groups} == {"bf16[4, 8]", "bf16[4, 3]", "bf16[4, 5]"}


@pytest.mark.parametrize(("most", "groups"), [(0, 1), (30, 1), (12, 2)])
@pytest.mark.parametrize("reads", [True, False])
def test_much_work_after_a_dot(most: float, groups: int, reads: bool) -> None:
    """erf, tanh, mul and add of an element: 29 operations, refused where another array is read."""
    other = "%y" if reads else "%d"
    made = func(
        "%x: f32[4, 8], %w: f32[8, 8], %y: f32[4, 8]",
        f"""%d = dot(%x, %w) {{rule="m k, k n -> m n"}} : f32[4, 8]
        %e = erf(%d) : f32[4, 8]
        %t = tanh({other}) : f32[4, 8]
        %m = mul(%e, %t) : f32[4, 8]
        %z = add(%m, %d) : f32[4, 8]""",
    )
    fused = Pipeline(f"fuse{{max_epilogue={most}}}").run(made, check=True).func
    assert len(fused.nodes) == (groups if reads else 1)


def test_a_copied_value_that_the_consumer_waits_for_is_a_detour() -> None:
    """The sum has a copy of `abs`, and the end of the dot another one: the end needs the sum."""
    made = parse(
        """func @main(%c: f32[3], %x: f32[3, 13], %y: f32[13])
            -> (f32[13], f32[13], f32[4]) at tensor {
          %dot = dot(%c, %x) {rule="a, a b -> b"} : f32[13]
          %abs = abs(%dot) : f32[13]
          %pad = pad(%abs, 0.0:f32) {high=[3], interior=[0], low=[0]} : f32[16]
          %apart = reshape(%pad) : f32[4, 4]
          %part = reduce(%apart) {axes=[1], kind="sum"} : f32[4]
          %sum = reduce(%part) {axes=[0], kind="sum"} : f32[]
          %add = add(%abs, %sum) : f32[13]
          %max = max(%add, %y) : f32[13]
          %i = iota() {axis=0} : i64[4]
          %z = gather(%dot, %i) {rule="a!, k -> k"} : f32[4]
          return %add, %max, %z
        }"""
    )
    Pipeline("fuse").run(made, check=True)


VIEWS = {
    "none": "%t = neg(%q) : f32[8, 8]",
    "transpose": "%t = transpose(%q) {perm=[1, 0]} : f32[8, 8]",
    "reshape": """%r = reshape(%q) : f32[4, 16]
          %t = reshape(%r) : f32[8, 8]""",
    "pad": """%p1 = slice(%q) {limit=[8, 8], start=[0, 1], step=[1, 1]} : f32[8, 7]
          %t = pad(%p1, 0.0:f32) {high=[0, 0], interior=[0, 0], low=[0, 1]} : f32[8, 8]""",
}
KEPT = {
    "dot": '%u = dot(%g2, %w) {rule="m k, k n -> m n"} : f32[8, 8]',
    "result": "%u = reshape(%g2) : f32[64]",
    "sort": """%s = sort(%g2) {axis=1, descending=false, num_keys=1} : (f32[8, 8])
          %u = item(%s) {index=0} : f32[8, 8]""",
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("view", VIEWS)
def test_a_detour_through_gathers_of_gathers(view: str, kept: str) -> None:
    """The second gather is stored for `kept`; so is the first one, and what that reads."""
    out = "f32[64]" if kept == "result" else "f32[8, 8]"
    made = parse(
        f"""func @main(%x: f32[8, 8], %w: f32[8, 8], %i: i64[8]) -> (f32[8, 8], {out}) at tensor {{
          %p = exp(%x) : f32[8, 8]
          %d = dot(%p, %w) {{rule="m k, k n -> m n"}} : f32[8, 8]
          %q = tanh(%d) : f32[8, 8]
          {VIEWS[view]}
          %g1 = gather(%t, %i) {{rule="a! b, k -> k b"}} : f32[8, 8]
          %g2 = gather(%g1, %i) {{rule="a! b, k -> k b"}} : f32[8, 8]
          {KEPT[kept]}
          %c = add(%g2, %p) : f32[8, 8]
          return %c, %u
        }}"""
    )
    Pipeline("fuse").run(made, check=True)


NORMED = """func @f(%x: bf16[8, 16], %w: bf16[16, 32], %r: A) -> (A) at tensor {{
  %d = dot(%x, %w) {{rule="m k, k n -> m n"}} : f32[8, 32]
  %a = mul(%d, 2.0:f32) : f32[8, 32]
  {narrow}
  %w1 = cast(%c) : f32[8, 32]
  %w2 = cast(%r) : f32[8, 32]
  %e = add(%w1, %w2) : f32[8, 32]
  %s = reduce(%e) {{axes=[1], kind="max"}} : f32[8]
  %b = broadcast(%s) {{axes=[0]}} : f32[8, 32]
  %z = sub({read}, %b) : f32[8, 32]
  %o = cast(%z) : bf16[8, 32]
  return %o
}}""".replace("A", "bf16[8, 32]")
NARROW = "%c = cast(%a) : bf16[8, 32]"


def test_a_dot_takes_what_makes_its_result_narrower() -> None:
    record = run(parse(NORMED.format(narrow=NARROW, read="%e")))
    assert [[n.op for n in g.blocks[0].nodes if n.op != "const"] for g in groups(record)] == [
        ["dot", "mul", "cast"],
        ["cast", "cast", "add", "reduce", "broadcast", "sub", "cast"],
    ]
    assert groups(record)[0].dtype.name == "bf16"


@pytest.mark.parametrize(
    ("narrow", "read"),
    [
        ("%c = neg(%a) : f32[8, 32]", "%e"),  # nothing becomes narrower
        (NARROW, "%a"),  # the row needs all of the product's digits as well
        (NARROW, "%d"),
    ],
)
def test_a_row_group_keeps_what_saves_no_bytes(narrow: str, read: str) -> None:
    made = parse(NORMED.format(narrow=narrow, read=read))
    assert [g.attrs["kind"] for g in groups(run(made))][-1] == "reduction"
    assert not any(n.op == "cast" for g in groups(run(made))[:-1] for n in g.blocks[0].nodes)


MOVED = """func @f(%x: {dtype}[8, 16], %w: {dtype}[16, 32], %m: f32[32], %v: f32[32])
  -> ({results}) at tensor {{
  %d = dot(%x, %w) {{rule="m k, k n -> m n"}} : {dtype}[8, 32]
  %c = cast(%d) : f32[8, 32]
  %e = add(%v, 0.5:f32) : f32[32]
  %q = rsqrt(%e) : f32[32]
  %mb = broadcast(%m) {{axes=[1]}} : f32[8, 32]
  %qb = broadcast(%q) {{axes=[1]}} : f32[8, 32]
  %s = sub(%c, %mb) : f32[8, 32]
  %n = mul(%s, %qb) : f32[8, 32]
  %r = max(%n, 0.0:f32) : f32[8, 32]
  %z = {last}
  return {returned}
}}"""
PAD = "pad(%r, 0.0:f32) {high=[1, 0], interior=[0, 0], low=[2, 0]} : f32[11, 32]"
HALF = "slice(%r) {limit=[6, 32], start=[2, 0], step=[1, 1]} : f32[4, 32]"


def moved(last: str, dtype: str = "f32", also: str = "") -> list[list[str]]:
    """The ops of each group where a product's result is moved after some operations."""
    results = last.rpartition(" : ")[2] + (f", {dtype}[8, 32]" if also else "")
    returned = f"%z, {also}" if also else "%z"
    made = MOVED.format(dtype=dtype, results=results, last=last, returned=returned)
    return [[n.op for n in g.blocks[0].nodes if n.op != "const"] for g in groups(run(parse(made)))]


def test_a_dot_takes_what_a_pad_would_repeat() -> None:
    """A value of few elements among it: in the kernel of the dot it is made once for a tile."""
    first, second = moved(PAD)
    assert first[0] == "dot" and first[-1] == "max" and "rsqrt" in first
    assert second == ["pad"]


@pytest.mark.parametrize(
    ("last", "dtype", "also"),
    [
        (HALF, "f32", ""),  # reads half of it
        (PAD, "bf16", ""),  # it is wider than the result of the dot
        (PAD, "f32", "%d"),  # that is needed elsewhere
    ],
)
def test_what_would_be_more_stays_behind_the_dot(last: str, dtype: str, also: str) -> None:
    assert "max" in moved(last, dtype, also)[-1]


NORM = """func @f(%x: bf16[512, 64], %m: f32[64], %g: f32[64]) -> (bf16[512, 64]) at tensor {
  %c = cast(%x) : f32[512, 64]
  %b = broadcast(%m) {axes=[1]} : f32[512, 64]
  %d = sub(%c, %b) : f32[512, 64]
  %q = mul(%d, %d) : f32[512, 64]
  %v = reduce(%q) {axes=[0], kind="sum"} : f32[64]
  %r = rsqrt(%v) : f32[64]
  %w = broadcast(%r) {axes=[1]} : f32[512, 64]
  %n = mul(%d, %w) : f32[512, 64]
  %z = cast(%n) : bf16[512, 64]
  return %z
}
"""


def wide_arrays(text: str) -> int:
    """The number of arrays of deviations that are written in four bytes."""
    made = Pipeline("split_reductions{parts=4},fuse").run(parse(text), check=True).func
    types = [r.tensor for n in made.nodes if n.op == "fusion" for r in n.blocks[0].results]
    return sum(t.size == 512 * 64 and t.dtype.name == "f32" for t in types)


def test_deviations_are_computed_again_where_they_are_read() -> None:
    """Two bytes are read for each of them, in place of four written and four read."""
    assert wide_arrays(NORM) == 0


def test_what_takes_many_operations_is_written_once() -> None:
    assert wide_arrays(NORM.replace("sub(%c, %b)", "pow(%c, %b)")) == 1


def test_copies_are_made_in_program_order() -> None:
    """The order does not depend on the creation of nodes, nor on their addresses."""
    b, x = Builder(), param("x", tensor("f32", 64))
    row = b.add(b.mul(x, x), x, named="row")
    tables = [param(f"w{i}", tensor("f32", 8 + i, 64)) for i in range(8)]
    made = [
        b.exp(b.mul(b.broadcast(row, axes=(1,), type=w.type), w), named=f"m{i}")
        for i, w in reversed([*enumerate(tables)])
    ]
    (record,) = Pipeline("fuse").run(b.func("f", [x, *tables], made[::-1])).records
    assert [r.node for r in record.rewrites if r.rule == "copy_producer"] == ["%m0"]


HEADS = """%d = dot(%x, %w) {rule="m k, k n -> m n"} : f32[64, 128]
%bb = broadcast(%b) {axes=[1]} : f32[64, 128]
%h = add(%d, %bb) : f32[64, 128]
%c = cast(%h) : bf16[64, 128]
%z = reshape(%c) : bf16[64, 4, 32]"""


def test_a_view_of_an_argument_comes_before_what_is_computed_of_it() -> None:
    lines = """%e = exp(%x) : f32[64, 128]
%c = cast(%e) : bf16[64, 128]
%z = reshape(%c) : bf16[64, 4, 32]"""
    record = run(func(X, lines))
    (group,) = groups(record)
    assert [n.op for n in group.blocks[0].nodes] == ["exp", "cast"]
    assert group.args[0].op == "reshape"


FLAT_SUM = """%e = exp(%x) : f32[64, 128]
%t = tanh(%e) : f32[64, 128]
%q = mul(%e, SECOND) : f32[64, 128]
%a = add(%t, %q) : f32[64, 128]
%v = reshape(%a) : f32[8192]
%w = broadcast(%v) {axes=[1]} : f32[3, 8192]
%z = reduce(%w) {axes=[1], kind="sum"} : f32[3]"""


@pytest.mark.parametrize("second", ["%x", "2.0:f32", "%t"])
def test_a_view_of_what_several_ops_compute_comes_before_them(second: str) -> None:
    record = run(func(X, FLAT_SUM.replace("SECOND", second)))
    assert "reshape_first" in {r.rule for r in record.rewrites}
    assert all(n.op != "reshape" for g in groups(record) for n in g.blocks[0].nodes)


@pytest.mark.parametrize(
    "row", ["broadcast(%s) {axes=[0]}", 'scan(%x) {axis=1, kind="sum", reverse=false}']
)
def test_a_view_of_a_row_or_of_two_results_stays_where_it_is(row: str) -> None:
    lines = f"""%s = reduce(%x) {{axes=[1], kind="sum"}} : f32[64]
%r = {row} : f32[64, 128]
{FLAT_SUM.replace("SECOND", "%r")}"""
    record = run(func(X, lines))
    assert "reshape_first" not in {r.rule for r in record.rewrites}


def test_a_view_of_an_epilogue_is_one_of_its_result() -> None:
    """In the middle, between the sum and the cast, it would be an index into a tile of the dot."""
    record = run(func(LINEAR, HEADS))
    (group,) = groups(record)
    assert [n.op for n in group.blocks[0].nodes] == ["dot", "broadcast", "add", "cast"]
    assert bare(record) == {"reshape"}


def test_a_view_of_a_bare_dot_stays_behind_its_cast() -> None:
    lines = """%d = dot(%x, %w) {rule="m k, k n -> m n"} : f32[64, 128]
%c = cast(%d) : bf16[64, 128]
%z = reshape(%c) : bf16[64, 4, 32]"""
    (group,) = groups(run(func(LINEAR, lines)))
    assert [n.op for n in group.blocks[0].nodes] == ["dot", "cast"]


def test_a_view_of_what_others_read_stays_where_it_is() -> None:
    lines = """%e = exp(%x) : f32[64, 128]
%s = reduce(%e) {axes=[1], kind="sum"} : f32[64]
%c = cast(%e) : bf16[64, 128]
%v = reshape(%c) : bf16[64, 4, 32]
%z = reduce(%v) {axes=[2], kind="max"} : bf16[64, 4]"""
    record = run(func(X, lines.replace("%z =", "%y =") + "\n%z = neg(%s) : f32[64]"))
    assert "reshape_first" not in {r.rule for r in record.rewrites}


@pytest.mark.parametrize("op", ["digamma", "exp", "cast"])
def test_what_the_backend_refuses_takes_no_group_with_it(op: str) -> None:
    lines = f"""%a = mul(%x, 2.0:f32) : f32[64, 128]
    %b = {op}(%a) : f32[64, 128]
    %c = add(%b, 1.0:f32) : f32[64, 128]
    %z = tanh(%c) : f32[64, 128]""".replace("cast(%a) : f32", "cast(%a) : f16")
    lines = lines.replace("add(%b", "add(%d") if op == "cast" else lines
    lines = lines.replace("%c =", "%d = cast(%b) : f32[64, 128]\n%c =") if op == "cast" else lines
    source = func(X, lines)
    record = run(source, f"{{refuse=[{op}]}}")
    held = [{n.op for n in g.blocks[0].nodes} for g in groups(record)]
    assert bare(record) == {op}
    assert len(held) == 2 and "mul" in held[0] and {"add", "tanh"} <= held[1]
    assert len(groups(run(source, "{refuse=[log]}"))) == 1


COLUMNS = """%s{i} = reduce(%x{i}) {{axes=[0], kind="sum"}} : f32[128]
%mb{i} = broadcast(%s{i}) {{axes=[1]}} : f32[64, 128]
%d{i} = sub(%x{i}, %mb{i}) : f32[64, 128]
%q{i} = mul(%d{i}, %d{i}) : f32[64, 128]
%v{i} = reduce(%q{i}) {{axes=[0], kind="sum"}} : f32[128]
%vb{i} = broadcast(%v{i}) {{axes=[1]}} : f32[64, 128]
%x{j} = mul(%d{i}, %vb{i}) : f32[64, 128]"""


def asked(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns how often the pass asks what computes a value, for so many norms over columns."""
    calls: list[Node] = []

    def counted(grouping: Grouping, group: Group, value: Node) -> list[Node]:
        calls.append(value)
        return made_of(grouping, group, value)

    made_of = fuse._made_of
    with monkeypatch.context() as patched:
        patched.setattr(fuse, "_made_of", counted)
        body = "\n".join(COLUMNS.format(i=i, j=i + 1) for i in range(layers))
        made = Pipeline("fuse").run(func("%x0: f32[64, 128]", body)).func
    groups = [n for n in made.nodes if n.op == "fusion"]
    assert sum(m.op == "sub" for g in groups for m in g.blocks[0].nodes) > layers
    return len(calls)


def test_values_that_stay_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(16, monkeypatch) < 3 * asked(8, monkeypatch)
