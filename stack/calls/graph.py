"""A captured program that takes and returns framework arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stack.calls.weight_cache import WeightCache
from stack.errors import StackError
from stack.ir.types import DType
from stack.ranges import recording
from stack.run.backend import AddressProgram, CallDense, Direct, FrozenValues
from stack.run.captured_program import CapturedProgram
from stack.run.foreign import ForeignSteps
from stack.run.frontend import Captured, Finds, Frontend
from stack.run.met_sizes import Sizes


class CompiledGraph(CapturedProgram):
    """A captured program for calls. Call it with framework arrays for the parameters after
    `captured.bound`.
    """

    def __init__(self, captured: Captured, frontend: Frontend, *args: Any, **options: Any) -> None:
        self.kept: dict[Sizes, WeightCache] = {}
        # a fast call for arrays like those of the last call; if sizes are symbolic, for each tuple
        # of shapes
        self.direct: Direct | None = None
        self.by_shapes: dict[tuple[Any, ...], Direct] = {}
        super().__init__(captured, frontend, *args, **options)
        func = self.captured.func
        self.dtypes = [p.dtype for p in func.params]
        self.returned = [r.dtype for r in func.results]

    def _cache(self, sizes: Sizes, frozen: FrozenValues) -> WeightCache:
        """Returns the cache of the values that depend only on weights."""
        if sizes not in self.kept:
            self.kept[sizes] = WeightCache(frozen, self.frontend)
        return self.kept[sizes]

    def ready(self, arrays: Sequence[Any]) -> list[Any]:
        """Converts the arrays of a call to arguments of `execute`, one for each parameter, the
        bound arrays first. Raises TypeError, which names the argument, for an array that does not
        fit.

        They are storage arrays, or framework arrays on the device if the program was captured
        there.
        """
        everything = [*self.captured.bound, *arrays]
        if len(everything) != len(self.dtypes):
            raise TypeError(f"expected {len(self.dtypes)} arrays, got {len(everything)}")
        try:
            return self._ready(everything, self.dtypes)
        except TypeError:
            self._name_wrong(everything)
            raise

    def _ready(self, arrays: Sequence[Any], dtypes: Sequence[DType]) -> list[Any]:
        if self.on_device:
            return self.frontend.to_device(arrays, dtypes, self.captured.device)
        return [self.frontend.to_numpy(a, d) for a, d in zip(arrays, dtypes)]

    def _name_wrong(self, arrays: Sequence[Any]) -> None:
        """Raises the TypeError of the first array that cannot be converted, with its name."""
        for p, array in zip(self.func.params, arrays, strict=True):
            try:
                self._ready([array], [p.dtype])
            except TypeError as error:
                raise TypeError(f"argument {p.attrs['name']!r} is {p.type}: {error}") from error

    def prepare(self, arrays: Sequence[Any]) -> None:
        """Compiles for the sizes of framework arrays without running."""
        self.executable_for(self.ready(arrays))

    def foreign(self, arrays: Sequence[Any]) -> tuple[ForeignSteps, list[Any]]:
        """Returns the program for arrays of these shapes as custom calls of XLA, and its arguments.

        `arrays`: for all parameters. The arguments are these arrays, or the cached values of the
        weights, which do not change here, and the arrays that the rest of the program takes.
        """
        sizes = self._sizes_of([a.shape for a in arrays])
        executable = self._executable(sizes)
        steps = executable.foreign()
        if steps is None:
            raise StackError(
                f"backend {self.backend.name!r} makes no kernels that XLA can call: declare it as"
                " another compiler, with `peer=Peer()`"
            )
        frozen = executable.frozen
        if frozen is None:
            return steps, list(arrays)
        kept = self._cache(sizes, frozen)
        bound = self.captured.bound
        held = kept.values(bound, self._ready(bound, self.dtypes))
        self.runs[sizes].notes["frozen"] = kept.note
        types = [p.dtype for p in steps.func.params]
        values = [self.frontend.from_numpy(v, t) for v, t in zip(held, types)]
        return steps, [*values, *(arrays[i] for i in frozen.given)]

    def match(self, args: Sequence[Any]) -> list[Any] | None:
        """Converts a call's arguments for `execute`. Returns None if the types or shapes are not
        those that the graph was captured for.
        """
        try:
            return self._matched(args)
        except (TypeError, ValueError):
            return None

    def _matched(self, args: Sequence[Any]) -> list[Any]:
        ready = self.ready(self.captured.flatten(*args))
        if not self._is_fixed(ready):
            self.func.sizes([a.shape for a in ready])
        return ready

    def execute(self, ready: list[Any], arrays: Sequence[Any] = ()) -> list[Any]:
        """Runs on the result of `ready` and returns framework arrays; removes the arrays from the
        list.

        `arrays`: the argument of `ready`, needed if values of weights are cached.
        """
        return self._run(self._sizes(ready), ready, arrays)

    def _run(self, sizes: Sizes, ready: list[Any], arrays: Sequence[Any]) -> list[Any]:
        """Like `execute`, if the values of the size symbols are known already."""
        executable = self._executable(sizes)
        if self.on_device:
            assert executable.accept is not None
            assert executable.call is not None
            found = executable.call(executable.accept(ready))
            if executable.arrays != self.frontend.name and executable.wait is not None:
                executable.wait()
            return self.frontend.from_device(found)
        back = self.frontend.from_numpy
        if executable.frozen is not None:
            found = self._with_kept(sizes, executable.frozen, ready, arrays)
        elif executable.drain is None:
            found = executable.run(ready)
        else:
            found = executable.drain(_taken_out(ready))
        return [back(r, dtype) for r, dtype in zip(found, self.returned, strict=True)]

    def _with_kept(
        self, sizes: Sizes, frozen: FrozenValues, ready: Sequence[Any], arrays: Sequence[Any]
    ) -> list[np.ndarray]:
        """Runs a program with cached values: takes those for the current weights from the cache, or
        computes them, and notes their size in the record.
        """
        kept = self._cache(sizes, frozen)
        values = kept.values([*self.captured.bound, *arrays], ready)
        self.runs[sizes].notes["frozen"] = kept.note
        return frozen.call(values, ready)

    def call_flat(self, arrays: list[Any]) -> list[Any]:
        """Framework arrays in, framework arrays out; removes the arrays from the list."""
        if recording() is not None:
            return self._called(arrays)
        if self.fixed is None:
            self.direct = self.by_shapes.get(_shapes(arrays))
        found = None if self.direct is None else self.direct(arrays)
        return self._called(arrays) if found is None else found

    def meet(self, arrays: Sequence[Any]) -> None:
        """Compiles for a call with these arrays, unless one with their shapes has run. Raises
        SeldomSizes if the framework is to run the call.
        """
        if self.fixed is None and _shapes(arrays) not in self.by_shapes:
            self._executable(self._sizes_of([array.shape for array in arrays]))

    def _called(self, arrays: list[Any]) -> list[Any]:
        """Converts and runs like `execute`, and raises errors for unsuitable arrays. If the program
        has no bound arrays, sets up `direct`, the fast call for later arrays like these.
        """
        ready = self.ready(arrays)
        sizes = self._sizes(ready)
        executable = self._executable(sizes)
        if not self.captured.bound and recording() is None:
            self.direct = self._direct(sizes, arrays)
            if self.fixed is None and self.direct is not None:
                self.by_shapes[_shapes(arrays)] = self.direct
        given = [*arrays] if executable.frozen is not None else ()
        arrays.clear()
        return self._run(sizes, ready, given)

    def _direct(self, sizes: Sizes, arrays: Sequence[Any]) -> Direct | None:
        """Returns a call that passes the addresses of arrays like these instead of converting them;
        None if the executable or the frontend does not support it.
        """
        program, found = self.by_address(sizes)
        if program is None:
            return None
        return self.frontend.direct(program, arrays, self.returned, found)

    def by_address(self, sizes: Sizes) -> tuple[AddressProgram | None, Finds | None]:
        """Returns the program that runs on addresses, and the function that finds its cached values
        of weights. The first is None if there is no such program, the second if nothing is cached.
        """
        executable = self.executables.get(sizes)
        if executable is None:
            return None, None
        frozen = executable.frozen
        program = executable.by_address() if frozen is None else frozen.by_address()
        if program is None or (program.frees and not self.captured.is_lent):
            return None, None
        return program, None if frozen is None else self._cache(sizes, frozen).found

    def call_dense(self, sizes: Sizes) -> CallDense | None:
        """Returns how to call on dense arrays of known layout; None if arrays are converted."""
        executable = self.executables.get(sizes)
        if executable is None or not self.on_device or self.captured.bound:
            return None
        return executable.call_dense if executable.arrays == self.frontend.name else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays = self.captured.flatten(*args, **kwargs)
        return self.captured.unflatten(self.execute(self.ready(arrays), arrays))


def _shapes(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([getattr(array, "shape", ()) for array in arrays])


def _taken_out(arrays: list[Any]) -> Iterator[Any]:
    """Yields the arrays of a list and removes them from it."""
    arrays.reverse()
    while arrays:
        yield arrays.pop()
