"""Faults to plant: one change of text each, the tests that are to fail, a program that shows it.

A fault is planted in a copy of the checkout. `tests` are of its folder alone. `expected` is what
`stackc bisect` has to say: the rule, else the pass, "backend" or "frontend".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A change of one place of one file.

    Attributes:
        tests: files, relative to `tests`.
        program: of `programs.py`, or a file of IR text in this folder's `programs.py` as text.
        expected: a word of what bisect prints; "" for the text of a GPU kernel: the sweep names a
            target, and bisect runs no kernel of a named target, so these are not counted.
        backend: that bisect is asked about.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    program: str
    expected: str
    backend: str = "mlir"


_RULES = "passes/rules/"
_CANONICAL = ("passes/test_canonicalize.py", "passes/test_movement.py")
_LAYOUT = ("passes/test_layout.py",)
_NATIVE = ("backends/mlir/test_special_values.py", "backends/mlir/test_math.py")
_TORCH = "frontends/torch/test_opinfo.py::test_first_samples"  # torch's own samples, by chunk

FAULTS = (
    # ---- rules of canonicalize and layout
    Fault("composed the wrong way round", _RULES + "movement.py",
          "composed = tuple(first[int(p)] for p in perm)",
          "composed = tuple(perm[int(p)] for p in first)",
          _CANONICAL, "transposes", "transpose_of_transpose"),
    Fault("a broadcast forgets the outer axes", _RULES + "movement.py",
          "composed = tuple(axes[a] for a in first)", "composed = tuple(first)",
          _CANONICAL, "broadcasts", "broadcast_of_broadcast"),
    Fault("a reshape of a broadcast moves its axes", _RULES + "movement.py",
          'axes = tuple(place[a] for a in inner.attrs["axes"])',
          'axes = tuple(after[: len(inner.attrs["axes"])])',
          _CANONICAL, "broadcasts", "reshape_of_broadcast"),
    Fault("a reduction's kept axes are sorted", _RULES + "transposes.py",
          "kept = [p for i, p in enumerate(perm) if i not in reduced]",
          "kept = sorted(p for i, p in enumerate(perm) if i not in reduced)",
          _LAYOUT, "reductions", "sink_through_reduce"),
    Fault("a permutation is not inverted", _RULES + "transposes.py",
          "back[p] = i", "back[i] = p", _LAYOUT, "turned", "layout"),
    Fault("a sunk broadcast has the inverse permutation", _RULES + "transposes.py",
          'return transposed(make("broadcast", (x,), attrs, hint=hint), inverse(order))',
          'return transposed(make("broadcast", (x,), attrs, hint=hint), order)',
          _LAYOUT, "sunk", "layout"),
    Fault("a sunk reshape has the inverse permutation", _RULES + "transposes.py",
          "transposed(reshaped(source, shape), [order.index(o) for o in range(len(order))])",
          "transposed(reshaped(source, shape), order)", _LAYOUT, "split", "sink_through_reshape"),
    Fault("a dot names its operand's axes backwards", _RULES + "dot_layout.py",
          "inputs[i] = tuple(inputs[i][order.index(p)] for p in range(len(order)))",
          "inputs[i] = tuple(inputs[i][p] for p in order)",
          _LAYOUT, "dots", "operand_transpose"),
    Fault("a dot's result has the inverse permutation", _RULES + "dot_layout.py",
          '[output[p] for p in node.attrs["perm"]]',
          '[output[node.attrs["perm"].index(p)] for p in range(len(output))]',
          _LAYOUT, "dots", "result_transpose"),
    # ---- canonicalize, decompose
    Fault("x - -y is x - y", "passes/canonicalize.py",
          'return make("add", (x, y.args[0])) if negative_of(y) else None',
          'return make("sub", (x, y.args[0])) if negative_of(y) else None',
          _CANONICAL, "algebra", "minus_negative"),
    Fault("x + -y is y - x", "passes/canonicalize.py",
          'return make("sub", (x, y.args[0])) if negative_of(y) and',
          'return make("sub", (y.args[0], x)) if negative_of(y) and',
          _CANONICAL, "algebra", "plus_negative"),
    Fault("branches of a negated condition", "passes/canonicalize.py",
          'return make("select", (test.args[0], no, yes))',
          'return make("select", (test.args[0], yes, no))',
          _CANONICAL, "algebra", "chosen"),
    Fault("x / 8 is x / 4", "passes/canonicalize.py",
          "filled(constant(1 / value, node.dtype), node.args[1])",
          "filled(constant(2 / value, node.dtype), node.args[1])",
          _CANONICAL, "algebra", "divide_by_power_of_two"),
    Fault("0 times a float is 0", "passes/canonicalize.py",
          'if node.dtype.kind not in "iub":\n        return Why("0 times an infinity',
          'if node.dtype.kind not in "iubf":\n        return Why("0 times an infinity',
          _CANONICAL, "algebra", "absorbing"),
    Fault("a float is equal to itself", "passes/canonicalize.py",
          'if node.args[0].dtype.kind not in "iub":', 'if node.args[0].dtype.kind not in "iubf":',
          _CANONICAL, "algebra", "compares_itself"),
    Fault("a float minus itself is 0", "passes/canonicalize.py",
          'if node.dtype.kind not in "iub":\n        return Why("an infinity minus',
          'if node.dtype.kind not in "iubf":\n        return Why("an infinity minus',
          _CANONICAL, "algebra", "cancels"),
    Fault("x ** 3 is x ** 2", "passes/decompose.py",
          'return make("mul", (make("mul", (x, x)), x))', 'return make("mul", (x, x))',
          ("passes/test_decompose.py",), "algebra", "small_power"),
    Fault("1 + tanh(x) by one sigmoid too small", "passes/decompose.py",
          'make("sigmoid", (make("mul", (tanh.args[0], two)),)), two))',
          'make("sigmoid", (tanh.args[0],)), two))',
          ("passes/test_decompose.py",), "algebra", "one_plus_tanh"),
    Fault("lone axes of a dot take the maximum", "passes/decompose.py",
          '{"kind": "sum", "axes": tuple(lone)}', '{"kind": "max", "axes": tuple(lone)}',
          ("passes/test_decompose.py",), "dots", "lone_axes"),
    # ---- streams, groups, memory
    Fault("a running value is corrected the wrong way", "passes/streaming/action.py",
          'total = make("mul", (total, self._ratio(factor, state.names)))',
          'total = make("div", (total, self._ratio(factor, state.names)))',
          ("passes/test_stream.py",), "attention", "stream"),
    Fault("signs of a running difference", "passes/streaming/render.py",
          'return make("add" if number == 1 else "sub", (total, part))',
          'return make("sub" if number == 1 else "add", (total, part))',
          ("passes/test_stream.py", "passes/test_stream_variants.py"),
          "centred", "stream", "triton"),
    Fault("the size of a negative is the negative", "passes/canonicalize.py",
          'return make("abs", inner.args)', "return inner",
          _CANONICAL, "folds", "idempotent"),
    Fault("lifetimes ignore a reshape", "passes/memory.py",
          "        if source is not None:\n"
          "            owner[node] = owner.get(source, [])\n"
          "        elif",
          "        if", ("passes/test_memory.py",), "held", "memory"),
    Fault("results lie in the arena", "passes/memory.py",
          "if key not in returned and isinstance(size, int)", "if isinstance(size, int)",
          ("passes/test_memory.py",), "held", "memory"),
    Fault("a value lives to its first reader", "passes/memory.py",
          "last.update(dict.fromkeys(owner.get(arg, ()), step))",
          "last.update({k: min(step, last[k] + 1) for k in owner.get(arg, ())})",
          ("passes/test_memory.py",), "held", "memory"),
    Fault("items of side by side products are swapped", "passes/horizontal_fusion.py",
          'changed[node] = Node("item", (made,), {"index": first}, node.type)',
          'changed[node] = Node("item", (made,), {"index": 0}, node.type)',
          ("passes/test_horizontal_fusion.py",), "products", "horizontal_fusion", "triton"),
    Fault("constants fold to their opposite", "passes/fold.py",
          "return constant(np.asarray(value), node.dtype)",
          "return constant(-np.asarray(value, float), node.dtype)",
          ("passes/test_fold.py",), "folds", "fold"),
    Fault("a masked block's identity is 0", "passes/steps/guard.py",
          "none = identity(kind, part.dtype)", 'none = identity("sum", part.dtype)',
          ("passes/test_blocks.py", "passes/steps/test_primitives.py"),
          "maxima", "blocks", "triton"),
    # ---- backends
    Fault("le is olt", "backends/mlir/elementwise.py", '"le": "ole"', '"le": "olt"',
          _NATIVE, "compared", "backend"),
    Fault("ge is ogt", "backends/mlir/elementwise.py", '"ge": "oge"', '"ge": "ogt"',
          _NATIVE, "compared", "backend"),
    Fault("a maximum drops nan", "backends/mlir/elementwise.py", "arith.maximumf", "arith.maxnumf",
          _NATIVE, "compared", "backend"),
    Fault("halves round away from 0", "backends/mlir/elementwise.py",
          "math.roundeven", "math.round", _NATIVE, "compared", "backend"),
    Fault("xor is or", "backends/mlir/elementwise.py", '"xor": "arith.xori', '"xor": "arith.ori',
          _NATIVE, "compared", "backend"),
    Fault("a stored condition is inverted", "backends/mlir/access.py",
          "arith.cmpi ne, {made}, {zero}", "arith.cmpi eq, {made}, {zero}",
          _NATIVE, "conditions", "backend"),
    Fault("triton: le is lt", "backends/triton/expressions.py", '"le": "<="', '"le": "<"',
          ("backends/triton/test_functions.py", "backends/triton/test_printer.py"),
          "compared", "", "triton"),
    Fault("cuda: le is lt", "backends/cuda/expressions.py", '"le": "<="', '"le": "<"',
          ("backends/cuda/test_printer.py",),
          "compared", "", "cuda"),
    # ---- frontends
    Fault("select takes the first", "frontends/torch/aten/shape.py",
          "return cx.select_at(x, axis, place)", "return cx.select_at(x, axis, 0)",
          (f"{_TORCH}[2]",), "torch_select", "frontend"),
    Fault("rsub is sub", "frontends/torch/aten/elementwise_ops.py",
          'return _add(cx, y, x, alpha=alpha, op="sub")',
          'return _add(cx, x, y, alpha=alpha, op="sub")',
          (f"{_TORCH}[1]",), "torch_rsub", "frontend"),
    Fault("remainder with the other sign", "frontends/torch/aten/elementwise_ops.py",
          'return cx.elementwise("ne", cx.elementwise("lt", rest, 0), cx',
          'return cx.elementwise("eq", cx.elementwise("lt", rest, 0), cx',
          (f"{_TORCH}[9]",), "torch_remainder", "frontend"),
    Fault("jax: x ** -3 is x ** 3", "frontends/jax/lax/elementwise_ops.py",
          "return power if y > 0 else s.b.div(constant(1, x.dtype), power)",
          "return power if y > 0 else power",
          ("frontends/jax/test_elementwise.py",),
          "jax_power", "frontend"),
)  # fmt: skip
