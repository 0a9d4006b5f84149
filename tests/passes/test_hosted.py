"""Pass `hosted`: how operators are lowered, by cost and by option."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import numpy as np
import pytest

from stack.errors import RuleError, UsageError
from stack.hosted import Kernel, Op, find, op, registry
from stack.hosted.nodes import custom
from stack.ir import Func, parse
from stack.ir.builder import Builder, param
from stack.ir.types import tensor
from stack.rewrite.pipeline import Pipeline


def _by_hand(x: np.ndarray, *, scale: float) -> tuple[np.ndarray, np.ndarray]:
    return x.sum(-1) * scale, x.max(-1)


def _at_most_64(x, *, scale):  # pyright: ignore
    return "rows are longer than 64" if x.shape[-1] > 64 else ""


@pytest.fixture
def folds() -> Iterator[Op]:
    """Two results, and a kernel that has code for short rows."""

    @op(
        "toys.folds",
        rule="... d! -> ..., ...",
        kernels=(Kernel("cpu", _by_hand, "rows", ("f32",), _at_most_64),),
    )
    def folds(np, x, *, scale: float = 2.0):
        """Sum and maximum of rows."""
        return np.sum(x, axis=-1) * scale, np.max(x, axis=-1)

    yield folds
    registry._DECLARED.pop("toys.folds")


def program(made: Op, rows: int = 4, columns: int = 8) -> Func:
    b = Builder()
    x = param("x", tensor("f32", rows, columns))
    total, top = custom(b, made, [x], {})
    return b.func("f", [x], [b.add(total, top)])


def run(func: Func, options: str) -> tuple[str, list[str]]:
    done = Pipeline(f"hosted{{{options}}}").run(func, check=True)
    return str(done.func), [str(n) for n in done.records[0].notes]


AFTER = """\
func @f(%x: f32[4, 8]) -> (f32[4]) at tensor {
  %reduce = reduce(%x) {axes=[1], kind="sum"} : f32[4]
  %broadcast = broadcast(2.0:f32) {axes=[]} : f32[4]
  %folds.0 = mul(%reduce, %broadcast) : f32[4]
  %folds.1 = reduce(%x) {axes=[1], kind="max"} : f32[4]
  %add = add(%folds.0, %folds.1) : f32[4]
  return %add
}
"""


def test_generated_is_the_decomposition(folds: Op) -> None:
    text, notes = run(program(folds), "device=cpu, prefer=generated")
    assert text == dedent(AFTER)
    assert notes == ["toys.folds decomposed: generated code is asked for"]


def test_by_hand_where_there_is_code(folds: Op) -> None:
    text, notes = run(program(folds), "device=cpu, prefer=hand")
    assert 'custom(%x) {kernel="rows", name="toys.folds"' in text
    assert notes == ["toys.folds kept for hand kernel 'rows': code by hand is asked for"]
    assert str(parse(text)) == text
    text, notes = run(program(folds, columns=65), "device=cpu, prefer=hand")
    assert "custom" not in text
    assert notes == ["toys.folds decomposed: hand kernel 'rows': rows are longer than 64"]


def test_no_code_for_a_device(folds: Op) -> None:
    text, notes = run(program(folds), "device=cuda, prefer=hand")
    assert "custom" not in text
    assert notes == ["toys.folds decomposed: no handwritten code for cuda"]


@pytest.mark.parametrize(
    ("times", "share", "is_kept"), [(1, 1.0, False), (2, 1.0, True), (2, 0.01, False)]
)
def test_cost_keeps_what_would_be_more_launches(times: int, share: float, is_kept: bool) -> None:
    """One product is one kernel whoever wrote it, and fuses with the ops around it."""
    by_hand = Kernel("cpu", lambda a, b: a, "blas", share=share)

    @op("toys.power", rule="n m, m m -> n m", kernels=(by_hand,))
    def power(np, a, b):
        for _ in range(times):
            a = np.matmul(a, b)
        return a

    try:
        b = Builder()
        params = [param(n, tensor("f32", 64, 64)) for n in "xy"]
        func = b.func("f", params, custom(b, power, params, {}))
        text, notes = run(func, "device=cpu")
        assert ("custom" in text) is is_kept
        what = "kept for hand kernel 'blas'" if is_kept else "decomposed"
        assert notes[0].startswith(f"toys.power {what}: {times} generated kernel(s) take an")
    finally:
        registry._DECLARED.pop("toys.power")


def test_options_are_checked(folds: Op) -> None:
    with pytest.raises(UsageError, match="cost, hand, generated"):
        run(program(folds), "prefer=fast")


def test_a_declaration_is_checked() -> None:
    with pytest.raises(UsageError, match=r"family\.name"):
        op("alone", rule="a -> a")(lambda np, x: x)
    with pytest.raises(UsageError, match="takes 1 arrays"):
        op("toys.two", rule="a, a -> a")(lambda np, x: x)
    with pytest.raises(UsageError, match="'k' needs a default"):
        op("toys.bare", rule="a -> a")(lambda np, x, *, k: x)
    made = op("toys.wrong", rule="a b -> a")(lambda np, x: x)
    try:
        with pytest.raises(RuleError, match="its code gives"):
            custom(Builder(), made, [param("x", tensor("f32", 2, 3))], {})
    finally:
        registry._DECLARED.pop("toys.wrong")


def test_a_kernel_for_one_architecture_is_passed_over_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel("cuda", _by_hand, arch="sm_90")
    for here, why in (("sm_90", ""), ("", ""), ("sm_80", "sm_90, this GPU is sm_80")):
        monkeypatch.setattr("stack.hosted.declaration._gpu_at_hand", lambda here=here: here)
        assert kernel.why_not([tensor("f32", 4, 8)], {}).endswith(why)
        assert bool(kernel.why_not([tensor("f32", 4, 8)], {})) is bool(why)


def test_kernels_of_a_device_have_names_of_their_own() -> None:
    """A program that is kept for a kernel knows it by its name."""
    kernels = (Kernel("cuda", _by_hand, "rows"), Kernel("cuda", _at_most_64, "rows"))
    with pytest.raises(UsageError, match="two kernels for cuda are called 'rows'"):
        op("toys.twice", rule="... d! -> ...", kernels=kernels)(lambda np, x: np.sum(x, axis=-1))


LONG = """\
func @f(%x: f32[{rows}, {columns}]) -> (f32[{rows}, {columns}]) at tensor {{
  %s = scan(%x) {{axis={axis}, kind="{kind}", reverse={reverse}}} : f32[{rows}, {columns}]
  return %s
}}"""


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, True),
        ({"prefer": "generated"}, False),
        ({"device": "cpu"}, False),
        ({"rows": 4096}, False),
        ({"columns": 4096}, False),
        ({"kind": "prod"}, False),
        ({"reverse": "true"}, False),
        ({"rows": 1 << 20, "columns": 4, "axis": 0}, False),
    ],
)
def test_a_scan_that_leaves_a_gpu_idle_becomes_an_operator(
    options: dict[str, object], changed: bool
) -> None:
    at = {"rows": 2, "columns": 1 << 20, "axis": 1, "kind": "sum", "reverse": "false"} | options
    chosen = ", ".join(f"{n}={v}" for n, v in {"device": "cuda", **options}.items() if n in HOW)
    func = parse(LONG.format(**at))
    done = Pipeline(f"hosted{{{chosen}}}").run(func)
    notes = [str(n) for n in done.records[0].notes]
    assert ("custom(" in str(done.func)) == changed
    assert any("scan becomes scan.inclusive, hand kernel" in n for n in notes) == changed


HOW = ("device", "prefer")


def test_an_operator_of_few_long_lines_is_kept() -> None:
    """Its decomposition would be a library's, whatever it costs."""
    b = Builder()
    x = param("x", tensor("f32", 1, 1 << 22))
    func = b.func("f", [x], custom(b, find("scan.inclusive"), [x], {}))
    done = Pipeline("hosted{device=cuda}").run(func)
    assert 'kernel="lookback"' in str(done.func)
    assert "no program scans lines that are so few and long" in str(done.records[0].notes[0])
