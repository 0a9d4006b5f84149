"""A captured program, compiled for each binding of its size symbols; takes storage arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stack.cpython import undisturbed
from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.verifier import verify
from stack.phases import phase
from stack.run.backend import Executable
from stack.run.compile import (
    DEVICE_BACKEND,
    check_native,
    compile_func,
    default_backend,
    find_backend,
)
from stack.run.frontend import Captured, Frontend
from stack.run.met_sizes import MetSizes, Sizes
from stack.run.options import check_options
from stack.run.pipeline_edits import DEFAULT, Passes, split_weights
from stack.run.record import Run, Stage, announce
from stack.wings import part


class CapturedProgram:
    """One captured program, compiled once for each binding of its size symbols."""

    def __repr__(self) -> str:
        kind = type(self).__name__
        runs = f"{len(self.runs)} run(s){self.met or ''}"
        return f"<{kind} {self.func.name} by {self.backend.name}: {runs}>"

    def __init__(
        self,
        captured: Captured,
        frontend: Frontend,
        backend: str | None = None,
        passes: Passes = DEFAULT,
        strict: bool = False,
        options: dict[str, Any] | None = None,
        label: str = "",
        others: Sequence[Any] = (),
        met: MetSizes | None = None,
    ) -> None:
        """Compiles, unless one of `others`, graphs of the same callable, has compiled the same
        function. `met` decides which sizes are compiled for; default: all.
        """
        self.strict = strict
        if strict:
            check_native(captured.func)
        leading = ""
        if passes != DEFAULT:
            leading, passes = split_weights(passes)
        self.prepared: tuple[Stage, ...] = ()
        if leading:
            imported = Stage("imported", func=captured.func)
            captured, stage = part("ops", "with-weights")(captured, frontend, leading)
            self.prepared = (imported, stage)
        self.captured = captured
        self.frontend = frontend
        self.on_device = captured.device != "cpu"
        self.backend = find_backend(backend or default_backend(captured.device))
        self.passes = passes
        self.options = options or {}
        check_options(self.backend, self.options)
        self.executables: dict[Sizes, Executable] = {}
        self.runs: dict[Sizes, Run] = {}
        self.target = label
        self.met = met  # None for a program whose sizes are fixed
        if met is None and captured.func.symbols:
            self.met = MetSizes(label or captured.func.name)
        self.others = [g for g in others if isinstance(g, CapturedProgram) and self._is_like(g)]
        verify(captured.func)
        self.fixed: list[tuple[int, ...]] | None = None  # shapes of a program without symbols
        if not captured.func.symbols:
            self.fixed = [tuple(map(int, p.shape)) for p in captured.func.params]  # pyright: ignore[reportArgumentType]
            self._compile(())

    @property
    def func(self) -> Func:
        return self.captured.func

    @property
    def run(self) -> Run:
        """Record of the newest compilation."""
        if not self.runs:
            raise StackError("not compiled yet: its sizes are symbolic, call it once")
        return next(reversed(self.runs.values()))

    @undisturbed
    @phase("rest")
    def _compile(self, key: Sizes) -> Executable:
        other = next((other for other in self.others if key in other.executables), None)
        if other is not None:
            executable, run = other.executables[key], self._run_like(other.runs[key])
        else:
            captured = self.captured
            run = Run(self.target, self.frontend.name, self.backend.name, notes=captured.notes)
            run.known = captured.known
            run.options = {"passes": self.passes, "strict": self.strict, **self.options}
            run.flags = self.frontend.flags()
            run.records.append(Stage("captured", make_text=lambda: captured.text))
            run.records += self.prepared or (Stage("imported", func=self.func),)
            bound = self.func.bind(dict(key)) if key else self.func
            options = {**self.options, "call_opaque": self.frontend.call_opaque}
            options |= {"weights": captured.weights, "meanwhile": captured.meanwhile}
            if self.on_device:
                options.setdefault("device", captured.device)
            executable = compile_func(bound, self.backend, run, self.passes, options)
            if self.on_device:
                self._check_device(executable)
            run.cover(self.func)
        self.executables[key], self.runs[key] = executable, run
        announce(run)
        return executable

    def _is_like(self, other: CapturedProgram) -> bool:
        """True if another graph has the same function and is compiled in the same way."""
        return self._way() == other._way()

    def _way(self) -> tuple[Any, ...]:
        """The key of a compilation: everything that its result depends on. It contains the names of
        weights only with option `freeze`.
        """
        captured = self.captured
        weights = captured.weights if self.options.get("freeze") else ()
        how = (self.backend, self.passes, self.options, self.frontend)
        return (captured.func, captured.device, captured.is_lent, weights, *how)

    def _run_like(self, run: Run) -> Run:
        """Copies the record of an equal graph that was compiled already, with this graph's target,
        captured text and notes, and a compile time of 0.
        """
        captured = Stage("captured", make_text=lambda: self.captured.text)
        records = [captured, *run.records[1:]]
        notes = self.captured.notes
        return replace(run, target=self.target, records=records, notes=notes, compile_s=0.0)

    def _check_device(self, executable: Executable) -> None:
        """Raises StackError for a program on a device that works on arrays of another one."""
        kind = self.captured.device.partition(":")[0]
        if executable.accept is None or executable.device.partition(":")[0] != kind:
            raise StackError(
                f"the arrays are on {self.captured.device}, and backend {self.backend.name!r} works"
                f" on {executable.device}: take backend={DEVICE_BACKEND!r}, or move the module and"
                " its inputs to the CPU"
            )

    def executable_for(self, ready: Sequence[Any]) -> Executable:
        """Returns the executable for the sizes of these arguments; compiles it if the graph has
        none for them yet.
        """
        sizes = self._sizes(ready)
        return self.executables.get(sizes) or self._compile(sizes)

    def _executable(self, sizes: Sizes) -> Executable:
        """Returns the executable for a call. Raises SeldomSizes if the framework is to run it."""
        found = self.executables.get(sizes)
        if found is None:
            if self.met is not None:
                self.met.ask(sizes)
            found = self._compile(sizes)
        return found

    def _sizes(self, ready: Sequence[Any]) -> Sizes:
        """Returns the name and value of each size symbol, from the shapes of the arguments; () if
        the program has no symbols.
        """
        return () if self._is_fixed(ready) else self._sizes_of([a.shape for a in ready])

    def _sizes_of(self, shapes: Sequence[Sequence[int]]) -> Sizes:
        return tuple(sorted(self.func.sizes(shapes).items()))

    def _is_fixed(self, ready: Sequence[Any]) -> bool:
        """True if the program has no size symbols and the arguments have its shapes, so that no
        sizes need to be solved for.
        """
        return self.fixed is not None and [tuple(a.shape) for a in ready] == self.fixed

    def prepare_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Compiles for arrays of these shapes, the bound ones first."""
        sizes = self._sizes_of(shapes)
        if sizes not in self.executables:
            self._compile(sizes)
