"""Imports a module of StableHLO: its main function, with all calls inlined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.interpreters import mlir

from stack.errors import RuleError, UsageError
from stack.frontends.files.stablehlo import axes, elementwise
from stack.frontends.files.stablehlo.lowering import TABLE, Call, type_of
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Block, Node

LOADED = (axes, elementwise)  # they fill the table
Values = dict[Any, Node]
ENDS = ("func.return", "stablehlo.return")


def import_text(text: str, file: str = "module.mlir") -> Func:
    """Imports a module.

    Args:
        file: begins the source line of each node, as `program.mlir:12`.

    Raises:
        UsageError: the text is no module of StableHLO.
        UnsupportedOp: names the op and its line.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except Exception as error:  # the bindings raise errors of their own
            first = " ".join(str(error).split())[:300]
            raise UsageError(f"{file} is no StableHLO that parses: {first}") from error
        found = {str(f.attributes["sym_name"].value): f for f in _functions(module)}
        if not found:
            raise UsageError(f"{file} has no function")
        return _Importer(found, file).function(found.get("main", next(iter(found.values()))))


def _functions(module: Any) -> Iterator[Any]:
    for operation in module.body.operations:
        if operation.operation.name == "func.func":
            yield operation


class _Importer:
    def __init__(self, functions: dict[str, Any], file: str) -> None:
        self.functions, self.file = functions, file

    def function(self, found: Any) -> Func:
        """Imports one function."""
        b = Builder()
        (block,) = found.regions[0].blocks
        params = [param(f"arg{i}", type_of(a)) for i, a in enumerate(block.arguments)]
        values = dict(zip(block.arguments, params, strict=True))
        results = self._block(block, values, b)
        b.loc = ()
        return b.func(str(found.attributes["sym_name"].value), params, results)

    def _block(self, block: Any, values: Values, b: Builder) -> list[Node]:
        """Imports the operations of a block; returns what it returns."""
        for operation in block.operations:
            op = operation.operation
            args = [values[v] for v in op.operands]
            if op.name in ENDS:
                return args
            b.loc = (self._line(op),)
            made = self._operation(op, args, values, b)
            for value, node in zip(op.results, made, strict=True):
                values[value] = node
        raise UsageError(f"a block of {self.file} returns nothing")

    def _line(self, op: Any) -> str:
        """Returns the line of an operation in the text: the location that parsing gives it."""
        location = str(op.location)
        parts = location.rsplit(":", 2)
        return f"{self.file}:{parts[1]}" if len(parts) == 3 else self.file

    def _operation(self, op: Any, args: list[Node], values: Values, b: Builder) -> list[Node]:
        name = str(op.name)
        call = Call(name.partition(".")[2], b, op, args, [type_of(r) for r in op.results])
        if name == "func.call":
            body = self.functions[str(op.attributes["callee"].value)]
            (block,) = body.regions[0].blocks
            return self._block(block, dict(zip(block.arguments, args, strict=True)), b)
        if name == "stablehlo.while":
            return self._while(op, args, values, b)
        lowering = TABLE.get(call.name)
        if lowering is None or name.partition(".")[0] not in ("stablehlo", "chlo"):
            raise call.fail("it has no lowering")
        try:
            made = lowering(call)
        except RuleError as error:
            raise call.fail(str(error)) from error
        return made if isinstance(made, list) else [made]

    def _while(self, op: Any, args: Sequence[Node], values: Values, b: Builder) -> list[Node]:
        """A loop; values from outside that its regions use are carried unchanged."""
        regions = [region.blocks[0] for region in op.regions]
        outer = [v for block in regions for v in _captured(block)]
        outer = list(dict.fromkeys(v for v in outer if v in values))
        inits = [*args, *(values[v] for v in outer)]
        blocks: list[Block] = []
        for number, block in enumerate(regions):
            inner = Builder()
            params = [param(f"v{i}", x.type) for i, x in enumerate(inits)]
            own = dict(zip([*block.arguments, *outer], params, strict=True))
            results = self._block(block, own, inner)
            kept = params[len(args) :] if number else []
            blocks.append(inner.block(params, [*results, *kept]))
        made = b.while_(*inits, blocks=blocks)
        if len(inits) == 1:
            return [made]
        return [b.item(made, index=i) for i in range(len(args))]


def _captured(block: Any) -> Iterator[Any]:
    """Yields the operands of a block's operations, also in regions inside of them."""
    for operation in block.operations:
        yield from operation.operation.operands
        for region in operation.operation.regions:
            for inner in region.blocks:
                yield from _captured(inner)
