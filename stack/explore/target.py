"""Resolve a target of the command line: a program, a saved run, or a file of IR text."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import stack.plugins as plugins
import stack.wings as wings
from stack.errors import StackError, UsageError
from stack.explore.saved_run import SavedRun, is_run, load_run
from stack.ir import files
from stack.ir.func import Func
from stack.releases import install_hint
from stack.run.file_format import load_file
from stack.run.input_specs import parse_input
from stack.run.trace import entry_of, find_frontend

FORMS = (
    "a target is `file.py:name` or `pkg.mod:name`, where name is a module instance, a function"
    " (give inputs with -i) or a factory that returns (callable, args); or the folder of a saved"
    " run; or a file of IR text, ONNX (.onnx) or StableHLO (.mlir); or `RUN:STAGE`"
)


@dataclass(frozen=True)
class ExampleCall:
    """A callable with example arguments. `frontend` is "auto" if none was chosen."""

    spec: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    frontend: str = "auto"


@dataclass(frozen=True)
class IRText:
    """A function parsed from a file of IR text, as the target of a command."""

    spec: str
    func: Func


CommandTarget = ExampleCall | SavedRun | IRText
_NO_PROGRAM = (type, types.ModuleType, types.GenericAlias)


def resolve(
    spec: str,
    frontend: str | None = None,
    inputs: Sequence[str] = (),
    options: dict[str, Any] | None = None,
) -> CommandTarget:
    """Finds the object that a target names.

    Args:
        frontend: passed to factories that take it, and used for `inputs`.
        inputs: texts such as "f32[2,16,64]", one for each argument.
        options: more keyword arguments for a factory.

    Raises:
        UsageError: nothing has this name; the message suggests similar names and accepted forms.
    """
    for text in inputs:
        parse_input(text)  # before a framework is imported
    path = Path(spec)
    if path.is_dir():
        return load_run(path)
    imported = load_file(path, inputs) if path.is_file() else None
    if imported is not None:
        return IRText(spec, imported)
    if path.is_file() and path.suffix != ".py":
        return IRText(spec, _text(path))
    left, colon, name = spec.rpartition(":")
    if not colon:
        raise UsageError(_no_colon(spec, path))
    if is_run(Path(left)):
        return IRText(spec, load_run(left).func(name))
    module = _load_file(Path(left)) if left.endswith(".py") else _load_module(left)
    return _program(_find(module, name, spec), spec, frontend, inputs, options or {})


def program(spec: str, frontend: str | None = None, inputs: Sequence[str] = ()) -> ExampleCall:
    """Returns the program that a target names, see `resolve`.

    Raises UsageError if it names a saved run or IR text instead.
    """
    found = resolve(spec, frontend, inputs)
    if not isinstance(found, ExampleCall):
        raise UsageError(f"{spec} is not a program: this command takes `file.py:name`")
    return found


def _text(path: Path) -> Func:
    """Reads a file of IR. Raises WingMissing if it is none, and formats of others are missing."""
    try:
        return files.load(path)
    except StackError:
        wings.wing("files")
        raise


def _no_colon(spec: str, path: Path) -> str:
    if path.suffix == ".py" and path.is_file():
        known = ", ".join(candidates(_load_file(path))) or "no callable"
        return f"{spec} needs a name: write `{spec}:name`; it has: {known}"
    beside = path.parent if path.parent.is_dir() else Path()
    near = difflib.get_close_matches(path.name, [p.name for p in beside.iterdir()], 3)
    hint = f"; similar: {', '.join(near)}" if near else ""
    return f"{spec!r} is neither a file nor a folder{hint}\n{FORMS}"


def _load_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        folder = path.parent
        found = [p.name for p in folder.glob("*.py")] if folder.is_dir() else []
        near = difflib.get_close_matches(path.name, found, 3) or sorted(found)[:5]
        hint = f"; {folder} has: {', '.join(near)}" if near else f"; {folder} has no Python files"
        raise UsageError(f"there is no file {path}{hint}")
    full = path.resolve()
    for module in list(sys.modules.values()):
        held = getattr(module, "__file__", None)
        if held and Path(held).resolve() == full and module.__name__ != "__main__":
            return module
    # as `python file.py` does, so that the file can import its neighbours
    if str(full.parent) not in sys.path:
        sys.path.insert(0, str(full.parent))
    name = path.stem if path.stem not in sys.modules else f"_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_failed(str(path), error) from error
    return module


def _load_module(name: str) -> types.ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is neither a Python file nor a module\n{FORMS}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(what: str, error: Exception) -> UsageError:
    last = error.__traceback__
    where = ""
    while last is not None:
        where = f" at {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
        last = last.tb_next
    lacks = error.name if isinstance(error, ModuleNotFoundError) else None
    known = lacks in plugins.names("stack.frontends")
    if lacks and not known and f"{what}.".startswith(f"{lacks}."):
        return UsageError(
            f"there is no module {lacks!r} here; a target is `file.py:name` or `pkg.mod:name`"
        )
    hint = f"; {install_hint(lacks)}" if lacks and known else ""
    return UsageError(f"importing {what} failed{where}: {type(error).__name__}: {error}{hint}")


def candidates(module: types.ModuleType) -> list[str]:
    """Returns the public names of a module that can be targets, in the order of the file."""
    found: list[str] = []
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, _NO_PROGRAM):
            continue
        if inspect.isfunction(value) and value.__module__ != module.__name__:
            continue
        if callable(value) or _pair(value) is not None:
            found.append(name)
    return found


def _find(module: types.ModuleType, name: str, spec: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = candidates(module)
            near = difflib.get_close_matches(part, known, 2)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            has = f"it has: {', '.join(known)}" if known else "it has no callable"
            raise UsageError(f"{spec}: no {part!r} in {module.__name__}; {hint}{has}")
        value = getattr(value, part)
    return value


def _pair(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Returns the pair `(callable, args)`, or None for other values. Arguments may be a list."""
    if not isinstance(value, tuple):
        return None
    items = cast("tuple[Any, ...]", value)
    if len(items) != 2 or not callable(items[0]) or not isinstance(items[1], tuple | list):
        return None
    return entry_of(items[0]).fn, tuple(cast("Sequence[Any]", items[1]))


def _program(
    found: Any,
    spec: str,
    frontend: str | None,
    inputs: Sequence[str],
    options: dict[str, Any],
) -> ExampleCall:
    named = frontend or "auto"
    pair = _pair(found)
    if pair is not None:
        return ExampleCall(spec, pair[0], _given(pair, inputs, named, spec), named)
    entry = entry_of(found, named)
    found = entry.fn
    if entry.args is not None and not inputs:
        return ExampleCall(spec, found, entry.args, named)
    if isinstance(found, type):
        raise UsageError(f"{spec} is a class; name an instance, or a factory that returns one")
    if not callable(found):
        raise UsageError(f"{spec} is {type(found).__name__}, which cannot be called\n{FORMS}")
    if not _may_be_factory(found):
        if not inputs:
            raise UsageError(
                f"{spec} needs inputs: add -i 'f32[2,16,64]' for each argument, or name a factory"
                " that returns (callable, args)"
            )
        return ExampleCall(spec, found, random_inputs(found, inputs, named, spec), named)
    pair = _pair(_call_factory(found, spec, frontend, options))
    if pair is not None:
        return ExampleCall(spec, pair[0], _given(pair, inputs, named, spec), named)
    if inputs:
        return ExampleCall(spec, found, random_inputs(found, inputs, named, spec), named)
    raise UsageError(
        f"{spec} did not return (callable, args); if it is the program itself, give its inputs"
        " with -i 'f32[2,16,64]'"
    )


def _may_be_factory(found: Callable[..., Any]) -> bool:
    """True if an object may be a function that returns a program, rather than a program itself.

    Such a function needs no arguments except `frontend=`. Modules are programs, never factories.
    """
    if not (inspect.isfunction(found) or inspect.ismethod(found)):
        return False
    return all(
        p.default is not p.empty
        or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        or p.name == "frontend"
        for p in inspect.signature(found).parameters.values()
    )


def _call_factory(
    found: Callable[..., Any], spec: str, frontend: str | None, options: dict[str, Any]
) -> Any:
    parameters = inspect.signature(found).parameters
    given = dict(options)
    takes = parameters.get("frontend")
    if takes is not None and (frontend or takes.default is takes.empty):
        given["frontend"] = frontend or plugins.names("stack.frontends")[-1]
    try:
        return found(**given)
    except StackError:
        raise
    except Exception as error:
        shown = ", ".join(f"{k}={v!r}" for k, v in given.items())
        raise UsageError(
            f"the factory {spec}({shown}) failed: {type(error).__name__}: {error}"
        ) from error


def _given(
    pair: tuple[Callable[..., Any], tuple[Any, ...]],
    inputs: Sequence[str],
    frontend: str,
    spec: str,
) -> tuple[Any, ...]:
    """Returns the arguments in a `pair` (callable, arguments) that a command's target names.

    If `inputs` gives types, returns random arrays of these types instead.
    """
    if not inputs:
        return pair[1]
    if len(inputs) != len(pair[1]):
        raise UsageError(f"{spec} takes {len(pair[1])} argument(s), {len(inputs)} given with -i")
    return random_inputs(pair[0], inputs, frontend, spec)


def imported_packages(fn: Callable[..., Any]) -> set[str]:
    """Returns the packages that the module of a function imports by name."""
    held = getattr(fn, "__globals__", {}).values()
    return {v.__name__.partition(".")[0] for v in held if isinstance(v, types.ModuleType)}


def random_inputs(
    fn: Callable[..., Any], inputs: Sequence[str], frontend: str, spec: str
) -> tuple[Any, ...]:
    """Returns random arrays of the framework that a callable belongs to."""
    if frontend == "auto":
        loaded = [n for n in plugins.names("stack.frontends") if n in sys.modules]
        named = [n for n in loaded if n in imported_packages(fn)]
        loaded = named or loaded
        try:
            return find_frontend(fn, (), "auto").random_inputs(inputs)
        except UsageError:
            if len(loaded) != 1:
                raise UsageError(
                    f"the framework of {spec} is unclear; add --frontend, one of"
                    f" {', '.join(plugins.names('stack.frontends'))}"
                ) from None
            frontend = loaded[0]
    return plugins.load("stack.frontends", frontend).random_inputs(inputs)
