"""The base classes of passes, and the text form of their options."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from stack.errors import UsageError, unknown_name
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_control
from stack.rewrite.engine import replace
from stack.rewrite.log import Log

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")


class Pass(ABC):
    """A pass is a frozen dataclass whose fields are its options; all have defaults.

        @dataclass(frozen=True)
        class Fuse(Pass):
            '''One line that describes it.'''
            max_inputs: int = 16

            def run(self, func: Func, log: Log) -> Func: ...

    Its name is that of the class, as in `split_reductions`; `name: ClassVar[str] = "other"` gives
    it another one. `run` returns a new function (functions are immutable). It calls
    `log.spend(rule, lines)` before each rewrite and stops rewriting if that returns False. It takes
    numbers of the machine from `log.gpu` or `log.cpu`. It does not verify, time or print: the
    pipeline does. A pass about a few ops names them, `class Unfold(Pass, needs=("conv",))`: the
    pipeline skips it for programs without them.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()  # see `idle`
    takes_weights: ClassVar[bool] = False  # True if it uses values of weights, as constants
    takes_schedules: ClassVar[bool] = False  # True if it uses schedules written by hand

    def __init_subclass__(cls, needs: tuple[str, ...] = ()) -> None:
        cls.needs = needs
        if "name" not in vars(cls):
            cls.name = re.sub(r"\B(?=[A-Z])", "_", cls.__name__).lower()

    @abstractmethod
    def run(self, func: Func, log: Log) -> Func:
        """The function after this pass."""

    def idle(self, func: Func) -> str:
        """Returns why the pass has nothing to do in a function, in words: neither the function nor
        a block in it has an op of `needs`. "" if the pass has to run.
        """
        if not self.needs or not func.body.ops.isdisjoint(self.needs):
            return ""
        *most, last = self.needs
        named = f"{', '.join(most)} or {last}" if most else last
        return f"no {named} in the program"

    def __str__(self) -> str:
        """The name and the options that differ from their defaults, as in a pipeline."""
        shown: list[str] = []
        fields = option_fields(type(self))
        default = type(self)() if fields else self
        for spec in fields:
            value = getattr(self, spec.name)
            if value != getattr(default, spec.name):
                shown.append(f"{spec.name}={option_text(value)}")
        return self.name + (f"{{{', '.join(shown)}}}" if shown else "")


class BlockPass(Pass):
    """A pass that changes one block at a time: bodies of loops and branches first, equal ones once.

    The inside of a fusion group is one kernel, so it is not visited.
    """

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self.block(func.body, log, {}), func.level)

    def block(self, block: Block, log: Log, done: dict[Block, Block]) -> Block:
        """Applies the pass to the bodies of loops, branches and calls in a block, then to the
        block. `done`: the blocks that it has changed, by the old ones."""
        if block not in done:
            changed = changed_bodies(block, lambda b: self.block(b, log, done))
            done[block] = self.change(replace(block, changed) if changed else block, log)
        return done[block]

    @abstractmethod
    def change(self, block: Block, log: Log) -> Block:
        """Returns one block after the pass; the bodies of loops, branches and calls in it are
        already changed. Subclasses implement this."""


def changed_bodies(block: Block, change: Callable[[Block], Block]) -> dict[Node, Node]:
    """Returns replacements for the branches, loops and calls whose bodies `change` changes."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if is_control(node):
            new = node.rebuilt(blocks=[change(b) for b in node.blocks])
            if new is not node:
                changed[node] = new
    return changed


def option_fields(cls: type[Pass]) -> tuple[dataclasses.Field[Any], ...]:
    """The options of a pass class."""
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def option_text(value: Any) -> str:
    """One option value as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        items = typing.cast("tuple[Any, ...]", value)
        return "[" + ", ".join(map(option_text, items)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value not in ("none", "true", "false")
        return value if plain else json.dumps(value)
    return repr(value)


def build(
    cls: type[Pass], options: dict[str, str | tuple[str, ...]], base: Pass | None = None
) -> Pass:
    """A pass from option texts. Raises UsageError, which lists the options.

    The other options are those of `base`, a pass of this class, or the defaults.
    """
    if not options:
        return base or cls()
    known = {spec.name: spec for spec in option_fields(cls)}
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in known:
            shown = [f"{option}={option_text(getattr(cls(), option))}" for option in known]
            raise unknown_name(f"pass {cls.name!r} has no option", name, known, shown)
        try:
            values[name] = _convert(text, hints[name])
        except (ValueError, TypeError):
            wanted = getattr(hints[name], "__name__", str(hints[name]))
            raise UsageError(
                f"option {name!r} of pass {cls.name!r} takes {wanted}, not {text!r}"
            ) from None
    kept = {name: getattr(base, name) for name in known} if base is not None else {}
    return cls(**{**kept, **values})


_hints = cache(typing.get_type_hints)  # evaluates annotations, which takes longer than the rest


def _convert(text: str | tuple[str, ...], hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if text == "none" and type(None) in args:
            return None
        return _convert(text, next(a for a in args if a is not type(None)))
    if origin is tuple:
        items = text if isinstance(text, tuple) else (text,)
        return tuple(_convert(t, args[0]) for t in items)
    if isinstance(text, tuple):
        raise ValueError(text)
    if hint is bool:
        return ("false", "true").index(text) == 1
    if hint is int:
        return int(text)
    if hint is float:
        return float(text)
    return json.loads(text) if text.startswith('"') else text
