"""Chains of products on a GPU: one loop where that costs less than the products."""

from __future__ import annotations

import pytest

from stack.ir import parse
from stack.rewrite import Pipeline

CHAIN = """func @f(%x: bf16[X], %w: bf16[W], %v: bf16[V]) -> (f32[Y]) at tensor {
  %d = dot(%x, %w) {rule="AB s k, Bn k -> AB s n"} : f32[D]
  %e = exp(%d) : f32[D]
  %c = cast(%e) : bf16[D]
  %z = dot(%c, %v) {rule="AB s n, Bo n -> AB s o"} : f32[Y]
  return %z
}
"""
CASES = {
    # a linear layer, an activation, a linear layer
    "few columns": ((25088, 192), (768, 192), (192, 768), False),
    # attention without its softmax: what is between is rows by rows
    "rows by rows": ((64, 4096, 128), (64, 4096, 128), (64, 128, 4096), True),
}


@pytest.mark.parametrize("name", CASES)
def test_chains(name: str) -> None:
    x, w, v, streams = CASES[name]
    batch = "a" if len(x) == 3 else ""
    shapes = {"X": x, "W": w, "V": v, "D": (*x[:-1], w[-2]), "Y": (*x[:-1], v[-2])}
    text = CHAIN.replace("AB", batch).replace("B", f"{batch} ").replace('" ', '"')
    for letter, shape in shapes.items():
        text = text.replace(f"[{letter}]", str(list(shape)))
    func = parse(text)
    result = Pipeline("stream{loops=blocks}").run(func, verbose=True)
    assert any(n.op == "stream" for n in result.func.nodes) == streams
    notes = " ".join(str(note) for record in result.records for note in record.notes)
    assert " us unfused" in notes
    plain = Pipeline("stream").run(func).func
    assert any(n.op == "stream" for n in plain.nodes)


DEEP = """func @f(%x: bf16[ROWS, DEPTH], %w: bf16[64, DEPTH], %v: bf16[64, 64]) -> (f32[ROWS, 64]) at tensor {
  %d = dot(%x, %w) {rule="s k, n k -> s n"} : f32[ROWS, 64]
  %m = reduce(%d) {axes=[1], kind="max"} : f32[ROWS]
  %b = broadcast(%m) {axes=[0]} : f32[ROWS, 64]
  %a = sub(%d, %b) : f32[ROWS, 64]
  %e = exp(%a) : f32[ROWS, 64]
  %c = cast(%e) : bf16[ROWS, 64]
  %z = dot(%c, %v) {rule="s n, n o -> s o"} : f32[ROWS, 64]
  return %z
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("rows", "depth", "streams"), [(1024, 2048, False), (1024, 128, True), (65536, 2048, True)]
)
def test_few_programs_do_not_contract_a_long_axis(rows: int, depth: int, streams: bool) -> None:
    func = parse(DEEP.replace("ROWS", str(rows)).replace("DEPTH", str(depth)))
    made = Pipeline("stream{loops=blocks}").run(func).func
    assert any(n.op == "stream" for n in made.nodes) == streams


HEAD = """func @f(%x: KIND[8192, 768], %w: KIND[32000, 768]) -> (f32[8192]) at tensor {
  %d = dot(%x, %w) {PRECISIONrule="s k, n k -> s n"} : f32[8192, 32000]
  %m = reduce(%d) {axes=[1], kind="max"} : f32[8192]
  %b = broadcast(%m) {axes=[0]} : f32[8192, 32000]
  %a = sub(%d, %b) : f32[8192, 32000]
  %e = exp(%a) : f32[8192, 32000]
  %s = reduce(%e) {axes=[1], kind="sum"} : f32[8192]
  %l = log(%s) : f32[8192]
  %z = add(%l, %m) : f32[8192]
  return %z
}
"""


@pytest.mark.parametrize(
    ("kind", "precision", "outside"),
    [("f32", 'precision="tf32", ', 1), ("bf16", "", 0), ("f32", "", 0)],
)
def test_a_matmul_whose_loop_would_round_is_a_kernel_before_the_stream(
    kind: str, precision: str, outside: int
) -> None:
    """The stream then reads its results once; its twins compute them in their loops."""
    func = parse(HEAD.replace("KIND", kind).replace("PRECISION", precision))
    made = Pipeline("stream{min_axis=32769,loops=blocks}").run(func).func
    assert [n.op for n in made.nodes].count("dot") == outside
    (stream,) = [n for n in made.nodes if n.op == "stream"]
    assert [n.op for n in stream.blocks[0].nodes].count("dot") == 1 - outside
