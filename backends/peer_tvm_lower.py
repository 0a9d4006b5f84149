"""Lowers a Relax module with TVM before tuning, and maps its functions back to ops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

T: Any = relax.transform


@mutator
class _CastCleanup(PyExprMutator):  # pyright: ignore
    """Drops casts to the same type; makes `full` of inf or nan, which 0.27 refuses, a constant."""

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        name = _op_name(call)
        if name == "relax.astype" and str(call.args[0].ty.dtype) == str(call.attrs.dtype):
            return call.args[0]
        if name != "relax.full" or not isinstance(call.args[0], relax.ShapeExpr):
            return call
        value = getattr(call.args[1], "value", None)
        if value is None or np.isfinite(value.numpy()).all():
            return call
        shape = [int(s) for s in call.args[0].values]
        return relax.const(np.full(shape, value.numpy()), str(call.ty.dtype))


def _tidy(module: Any) -> Any:
    tidy: Any = _CastCleanup(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            tidy.builder_.update_func(name, tidy.visit_expr(function))
    return tidy.builder_.get()


def _matmul(builder: Any, call: Any) -> Any:
    """Legalizes a matmul with a transposed matrix without materializing the transpose."""
    from tvm.relax.transform.legalize_ops.linear_algebra import _matmul as plain

    # at this stage the transpose is a call of a TIR function
    made: Any = (
        builder.lookup_binding(call.args[1]) if isinstance(call.args[1], relax.Var) else None
    )
    name = _callee(made)
    is_transposed = (
        name is not None
        and name.name_hint.startswith("transpose")
        and len(made.args[1]) == 1
        and len(call.args[1].ty.shape.values) == 2
        and len(call.args[0].ty.shape.values) >= 2
    )
    if not is_transposed:
        return plain(builder, call)
    source = made.args[1][0]

    def product(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[-1]), name="k")
        shape = [*a.shape[:-1], b.shape[0]]
        return te.compute(
            shape, lambda *at: te.sum(a(*at[:-1], k) * b(at[-1], k), axis=k), name="NT_matmul"
        )

    return builder.call_te(product, call.args[0], source, primfunc_name_hint="NT_matmul")


def lower(module: Any, target: Any) -> Any:
    """Lower to TIR functions with fusion patterns, one call for each op."""
    with target:
        passes = [
            T.FastMathTransform(),
            T.DecomposeOpsForInference(),
            T.CanonicalizeBindings(),
            T.FoldConstant(),
            T.EliminateCommonSubexpr(),
            T.RemoveRedundantReshape(),
            T.LegalizeOps({"relax.matmul": _matmul}),
            T.AnnotateTIROpPattern(),
            T.FoldConstant(),
            T.DeadCodeElimination(),
        ]
        return tvm.transform.Sequential(passes)(_tidy(module))


# ---- mapping functions back to nodes


def _op_name(call: Any) -> str:
    """The name of the Relax op that is called; "" for a call of a function."""
    is_op = isinstance(call, tvm.ir.Call) and isinstance(call.op, tvm.ir.Op)
    return str(getattr(call.op, "name", "")) if is_op else ""


def _bindings(function: Any) -> list[Any]:
    return [b for block in function.body.blocks for b in block.bindings]


def _callee(value: Any) -> Any:
    """The module's function that a Relax call runs; None if there is none."""
    if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        return value.op
    return value.args[0] if _op_name(value) == "relax.call_tir" else None


@mutator
class _DistinctCalls(PyExprMutator):  # pyright: ignore
    """Gives each call in main a function of its own, whose name identifies the call."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module
        self.number = 0

    def visit_call_(self, call: Any) -> Any:
        name = _callee(call)
        if name is None or not isinstance(self.module[name], tirx.PrimFunc):
            return call
        copy = self.module[name].with_attr("global_symbol", f"call_{self.number}")
        fresh = self.builder_.add_func(copy, f"call_{self.number}")
        self.number += 1
        return relax.Call(call.op, [fresh, *call.args[1:]], call.attrs, call.ty_args)


def groups_of(lowered: Any, known: dict[str, Any]) -> list[list[Any]]:
    """The origins of each call that main makes after fusion.

    Fusion runs on a copy of the module in which no two calls share a function. Its decisions are
    the same there.
    """
    origins: list[list[Any]] = []
    for binding in _bindings(lowered["main"]):
        name = _callee(binding.value)
        origin = known.get(binding.var.name)
        if name is not None and isinstance(lowered[name], tirx.PrimFunc):
            origins.append([] if origin is None else [origin])
    distinct: Any = _DistinctCalls(lowered)
    main = next(name for name in lowered.get_global_vars() if name.name_hint == "main")
    distinct.builder_.update_func(main, distinct.visit_expr(lowered[main]))
    fused = T.FuseOps()(distinct.builder_.get())

    def inside(function: Any) -> list[Any]:
        names = (_callee(b.value) for b in _bindings(function))
        numbers = (re.fullmatch(r"call_(\d+)", n.name_hint) for n in names if n is not None)
        return [origin for n in numbers if n for origin in origins[int(n[1])]]

    found: list[list[Any]] = []
    for binding in _bindings(fused["main"]):
        name = _callee(binding.value)
        if name is None:
            continue
        function = fused[name]
        if isinstance(function, relax.Function):
            found.append(inside(function))
        else:
            number = re.fullmatch(r"call_(\d+)", name.name_hint)
            found.append(origins[int(number[1])] if number else [])
    return found


def called(module: Any) -> list[str]:
    """Names of the functions that main calls, in order."""
    names = (_callee(b.value) for b in _bindings(module["main"]))
    return [n.name_hint for n in names if n is not None]


def planned_bytes(module: Any, target: Any) -> int:
    """Bytes that TVM's planner allocates for intermediates and results."""
    from tvm.relax.backend.cpu_generic.pipeline import dataflow_lower_passes

    with target:
        passes = [*dataflow_lower_passes(target), T.StaticPlanBlockMemory()]
        planned = tvm.transform.Sequential(passes)(module)
    total = 0

    def see(e: Any) -> None:
        nonlocal total
        name = _op_name(e)
        if name == "relax.memory.alloc_storage":
            total += int(e.args[0].values[0])
        elif name == "relax.builtin.alloc_tensor":
            shape = [int(s) for s in e.args[0].values]
            total += int(np.prod(shape)) * np.dtype(str(e.args[1].value)).itemsize

    relax.analysis.post_order_visit(planned["main"], see)
    return total
