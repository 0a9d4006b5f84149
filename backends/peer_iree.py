"""Drives IREE on the CPU: JAX lowers a program to StableHLO, and IREE compiles and runs that."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from stack.errors import StackError
from stack.frontends.jax import FRONTEND
from stack.frontends.jax.lax.lowering import jax_dtype
from stack.ir.func import Func
from stack.run.backend import Executable, Kernel

from .peer import Origins, PeerExecutable
from .peer_jax import context_for, replay, user_call

compiler: Any = import_module("iree.compiler")  # not static: type checks run without IREE
runtime: Any = import_module("iree.runtime")
TARGET = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O2")
DRIVER = "local-task"  # all cores
_DISPATCH = re.compile(r"flow\.executable\.export public @(\S+)")


def compile_replay(func: Func, options: dict[str, Any]) -> Executable:
    """See `iree.compile_iree`."""
    return _compiled(func, replay(func, Origins(func)), options, "the IR's replay")


def compile_native(captured: Any, options: dict[str, Any]) -> Executable:
    """See `iree.native_iree`."""
    return _compiled(captured.func, user_call(captured), options, "the original")


def _compiled(func: Func, fn: Callable[..., Any], options: dict[str, Any], what: str) -> Executable:
    text = _stablehlo(func, fn)
    flags = [*TARGET, *options.get("flags", ())]
    program = runtime.load_vm_flatbuffer(_compile(text, flags), driver=DRIVER)
    main, device = program.main, runtime.get_device(DRIVER)

    def prepare(arrays: Sequence[np.ndarray]) -> list[Any]:
        pairs = zip(arrays, func.params, strict=True)
        held = [np.asarray(FRONTEND.from_numpy(np.array(a), p.dtype)) for a, p in pairs]
        return [runtime.asdevicearray(device, a) for a in held]

    def call(prepared: list[Any]) -> list[Any]:
        found = main(*prepared)
        return [*found] if isinstance(found, tuple | list) else [found]

    def finish(results: list[Any]) -> list[np.ndarray]:
        pairs = zip(results, func.results, strict=True)
        return [FRONTEND.to_numpy(jax.numpy.asarray(x.to_host()), r.dtype) for x, r in pairs]

    def flow() -> str:
        return _compile(text, [*flags, "--compile-to=flow"]).decode()

    return PeerExecutable(
        run=lambda arrays: finish(call(prepare(arrays))),
        prepare=prepare,
        call=call,
        finish=finish,
        find_kernels=lambda: [Kernel(n, "generated") for n in _DISPATCH.findall(flow())],
        artifacts={"flow": flow},
        counts_what="dispatches of IREE's flow level: loop nests that it generates, matmuls too",
        note=f"IREE {version('iree-base-compiler')}, llvm-cpu, {what}",
    )


def _stablehlo(func: Func, fn: Callable[..., Any]) -> str:
    """Returns the program as StableHLO text."""
    specs = [jax.ShapeDtypeStruct(p.shape, jax_dtype(p.dtype)) for p in func.params]
    with context_for(func, "cpu")():
        fn.__name__ = "main"
        return jax.jit(fn, keep_unused=True).lower(*specs).as_text()


def _compile(text: str, flags: Sequence[str]) -> bytes:
    """Runs IREE's compiler. Raises StackError with the first line that it prints."""
    try:
        found = compiler.compile_str(
            text, input_type="stablehlo", target_backends=["llvm-cpu"], extra_args=[*flags]
        )
    except compiler.CompilerToolError as error:
        first = " ".join(str(error).split())[:300]
        raise StackError(f"iree: {first}") from error
    return bytes(found)
