"""Drives TVM: import through torch.export, lower, tune, build, run."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from stack.errors import StackError
from stack.frameworks.replaced import replaced
from stack.ir.data import storage_dtype
from stack.ir.func import Func
from stack.ir.node import Node
from stack.run.backend import Executable, Kernel

from . import peer_torch as pt
from .peer import Origins, PeerExecutable, fixed_shape, quiet, user_line

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    # TVMScript asks for the module of each frame, which takes a minute if torch is loaded
    with replaced(inspect, "getmodule", lambda *_a, **_k: None):
        import tvm.s_tir.tensor_intrin

from .peer_tvm_lower import called, groups_of, lower, planned_bytes
from .peer_tvm_tune import tune

T: Any = relax.transform


def cpu_target() -> Any:
    """An LLVM target for this CPU and the cores that this process may use."""
    from tvm.target import codegen

    cores = torch.get_num_threads()
    cpu = codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": cores})


# ---- import


class _Replay(torch.nn.Module):
    """A function whose first parameters may be bound to constants."""

    def __init__(self, func: Func, origins: Origins, bound: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.call = pt.callable_of(func, pt.OriginSpace(origins))
        self.count = len(bound)
        for i, tensor in enumerate(bound):
            self.register_buffer(f"bound_{i}", tensor)

    def forward(self, *args: torch.Tensor) -> Any:
        bound = [getattr(self, f"bound_{i}") for i in range(self.count)]
        return self.call(*bound, *args)


def _reduced(make: Callable[..., Any]) -> Callable[..., Any]:
    def convert(node: Any, importer: Any) -> Any:
        axes = list(node.args[1]) if len(node.args) > 1 else None
        keep = bool(node.args[2]) if len(node.args) > 2 else False
        return importer.block_builder.emit(make(importer.env[node.args[0]], axes, keep))

    return convert


def _divided(node: Any, importer: Any) -> Any:
    args = [importer.env[a] if isinstance(a, torch.fx.Node) else a for a in node.args]
    like: Any = next(a for a in args if isinstance(a, relax.Expr))
    held = [a if isinstance(a, relax.Expr) else relax.const(a, str(like.ty.dtype)) for a in args]
    return importer.block_builder.emit(relax.op.divide(*held))


def _chosen(node: Any, importer: Any) -> Any:
    """Converts torch's `where` to Relax, with both branches cast to the type that torch traced."""
    test, *values = (importer.env[a] for a in node.args)
    kind = str(node.meta["val"].dtype).removeprefix("torch.")
    emit = importer.block_builder.emit
    same = [v if str(v.ty.dtype) == kind else emit(relax.op.astype(v, kind)) for v in values]
    return emit(relax.op.where(test, *same))


def _widened(make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a converter of a binary op that casts operands to torch's result type."""

    def convert(node: Any, importer: Any) -> Any:
        kind = str(node.meta["val"].dtype).removeprefix("torch.")
        emit = importer.block_builder.emit

        def held(value: Any) -> Any:
            if not isinstance(value, torch.fx.Node):
                return relax.const(value, kind)
            found = importer.env[value]
            return found if str(found.ty.dtype) == kind else emit(relax.op.astype(found, kind))

        first, second = (held(a) for a in node.args)
        factor = node.kwargs.get("alpha", 1)
        if factor != 1:
            second = emit(relax.op.multiply(second, relax.const(factor, kind)))
        return emit(make(first, second))

    return convert


# ops for which TVM 0.27 has no converter, or a wrong one
_CONVERTERS = {
    "amax.default": _reduced(relax.op.max),
    "amin.default": _reduced(relax.op.min),
    "true_divide.Tensor": _divided,
    "where.self": _chosen,
    "add.Tensor": _widened(relax.op.add),
    "sub.Tensor": _widened(relax.op.subtract),
    "mul.Tensor": _widened(relax.op.multiply),
}


def export_func(func: Func, origins: Origins, bound: Sequence[torch.Tensor]) -> Any:
    """The replay of a function as an exported program."""
    with torch.no_grad():
        replay = _Replay(func, origins, bound)
        return torch.export.export(replay, _examples(func, len(bound)), strict=False)


def import_program(program: Any, origin: Callable[[str], Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a Relax module, and the origins of its variables, found from their stack traces."""
    failure: Exception | None = None
    # first without decomposition, which hides matmuls behind reshapes
    for decompose in (False, True):
        importer = ExportedProgramImporter()
        try:
            exported = program.run_decompositions() if decompose else program
            module = importer.from_exported_program(exported, False, False, False, _CONVERTERS)
        except Exception as error:
            failure = failure or error
            continue
        known: dict[str, Any] = {}
        for fx_node, value in importer.env.items():
            found = origin(getattr(fx_node, "meta", {}).get("stack_trace") or "")
            for variable in value if isinstance(value, tuple | list) else [value]:
                if isinstance(variable, relax.Var) and found:
                    known.setdefault(variable.name, found)
        return module, known
    raise StackError(f"tvm cannot import {culprit(failure)}: {failure}") from failure


def _examples(func: Func, bound: int) -> pt.Tensors:
    return tuple(
        torch.zeros(fixed_shape(p.tensor), dtype=pt.TORCH_DTYPE[p.dtype])
        for p in func.params[bound:]
    )


def culprit(error: BaseException | None) -> str:
    """Returns the op that an error's text names, for an error message; else "the program"."""
    found = re.search(r"\b(?:relax|aten)\.[\w.]+|\b\w+\.(?:default|\w*Tensor|Scalar)\b", str(error))
    return f"the op {found[0]}" if found else "the program"


# ---- compile


LOGGERS = ("torch", "torch.export", "tvm", "tvm.s_tir.meta_schedule")


class TvmProgram:
    """A Relax module, lowered, tuned and compiled to native code."""

    def __init__(self, module: Any, known: dict[str, Any], options: dict[str, Any]) -> None:
        self.known = known
        self.target = cpu_target()
        try:
            self.lowered = lower(module, self.target)
            with self.target:
                fused = T.FuseTIR()(T.FuseOps()(self.lowered))
            self.tuned = tune(fused, self.target, options)
            with self.target, self.tuned.database:
                self.scheduled = T.MetaScheduleApplyDatabase()(fused)
            built = tvm.compile(self.scheduled, target=self.target)
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise StackError(f"tvm failed at {culprit(error)}: {first}") from error
        cpu: Any = tvm.cpu()
        self.main = relax.VirtualMachine(built, cpu)["main"]

    def steps(self) -> list[tuple[str, str, list[Any]]]:
        """Returns name, text and origins (nodes of the IR) of each function that main calls."""
        names = called(self.scheduled)
        with quiet(*LOGGERS):
            groups = groups_of(self.lowered, self.known)
        if len(names) != len(groups):
            groups = [[] for _ in names]
        texts = {
            n.name_hint: f.script(show_meta=False) for n, f in self.scheduled.functions_items()
        }
        return [(n, texts[n], g) for n, g in zip(names, groups, strict=True)]

    def executable(
        self, func: Func, bound: int, describe: Callable[[str, str, list[Any]], Kernel], what: str
    ) -> Executable:
        """Returns the compiled program as an `Executable` for `func`.

        Args:
            bound: number of first parameters that are constants in it; calls skip their arrays.
            describe: makes a `Kernel` from a TIR function's name, text and origins.
            what: where the program comes from, for the note.
        """
        params = func.params[bound:]

        def prepare(arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
            return tuple(_to_tvm(a, p) for a, p in zip(arrays[bound:], params, strict=True))

        def call(prepared: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(self.main(*prepared))

        def finish(results: Sequence[Any]) -> list[np.ndarray]:
            return [_from_tvm(x, r) for x, r in zip(results, func.results, strict=True)]

        return PeerExecutable(
            run=lambda arrays: finish(call(prepare(arrays))),
            find_kernels=lambda: [describe(*step) for step in self.steps()],
            find_peak=lambda: planned_bytes(self.scheduled, self.target),
            artifacts={"tir": lambda: self.scheduled.script(show_meta=False)},
            counts_what="TIR functions that Relax's main calls, all generated",
            prepare=prepare,
            call=call,
            finish=finish,
            note=f"tvm {tvm.__version__}, {what}, {self.tuned.note},"
            f" {_threads(self.target)} threads",
        )


def compile_replay(func: Func, options: dict[str, Any]) -> Executable:
    """See `tvm.compile_tvm`."""
    origins = Origins(func)
    given = options.get("bound") or ()
    bound = pt.prepare_for([p.tensor for p in func.params[: len(given)]])(given)

    def origin(trace: str) -> Node | None:
        return next(iter(origins.found([trace])), None)

    with quiet(*LOGGERS):
        module, known = import_program(export_func(func, origins, bound), origin)
        program = TvmProgram(module, known, options)

    def describe(name: str, text: str, group: list[Any]) -> Kernel:
        return origins.kernel(name, "generated", group, text, "py")

    weights = "weights are constants" if given else "weights are arguments"
    return program.executable(func, len(given), describe, f"the IR's replay, {weights}")


def compile_native(captured: Any, options: dict[str, Any]) -> Executable:
    """See `tvm.native_tvm`."""
    func, root = captured.func, captured.original
    if not isinstance(root, torch.nn.Module):
        root = _Module(root)
    with quiet(*LOGGERS):
        try:
            with torch.no_grad():
                exported = torch.export.export(root, tuple(captured.args), strict=False)
        except Exception as error:
            raise StackError(f"torch.export cannot take the program: {error}") from error
        module, known = import_program(exported, user_line)
        program = TvmProgram(module, known, options)

    def describe(name: str, text: str, group: list[Any]) -> Kernel:
        return Kernel(name, "generated", text, "py", source=tuple(dict.fromkeys(group)))

    what = "torch.export of the original, weights are constants"
    return program.executable(func, len(captured.bound), describe, what)


class _Module(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def _threads(target: Any) -> int:
    return int(target.attrs["num-cores"])


def _to_tvm(array: np.ndarray, p: Node) -> Any:
    held = np.ascontiguousarray(array)
    if p.dtype.name == "bf16":
        import ml_dtypes

        held = held.view(ml_dtypes.bfloat16)
    return tvm.runtime.tensor(held)


def _from_tvm(tensor: Any, r: Node) -> np.ndarray:
    found = np.array(tensor.numpy(), order="C")
    return found.view(storage_dtype(r.dtype)) if r.dtype.name == "bf16" else found
