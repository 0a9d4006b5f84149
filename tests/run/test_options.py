"""An option that nobody takes is refused by every entry, with the nearest name that exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stack
import stack.plugins as plugins
from stack.cli import main
from stack.errors import UsageError, unknown_name
from stack.rewrite import Pipeline
from stack.run.options import check_options
from stack.run.specs import parse_backends

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
x = torch.ones(3, 4)


def double(x: Any) -> Any:
    return x * 2


def in_torch_compile(**options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(double, backend="stack", options=options)(x)


ENTRIES: list[Callable[..., Any]] = [
    lambda **options: stack.compile(double, x, **options),
    lambda **options: stack.compile(double, jax.numpy.ones(3), **options),
    lambda **options: stack.jit(double, **options)(jax.numpy.ones(3)),
    in_torch_compile,
]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"stict": True}, "'stict'; did you mean 'strict'"),
        ({"cach": False}, "'cach'; did you mean 'cache'"),
        ({"backend": "mlrr"}, "'mlrr'; did you mean 'mlir'"),
        ({"passes": "canonicalise"}, "'canonicalise'; did you mean 'canonicalize'"),
        ({"zzz": 1}, "'zzz'; there are: "),
    ],
)
def test_unknown_names_are_refused(
    entry: Callable[..., Any], options: dict[str, Any], near: str
) -> None:
    # torch.compile wraps what its backends raise
    with pytest.raises((UsageError, torch._dynamo.exc.BackendCompilerFailed), match=near):
        entry(**options)


@pytest.mark.parametrize("entry", ENTRIES)
def test_options_reach_the_backend(entry: Callable[..., Any]) -> None:
    seen: list[Any] = []
    backend = plugins.load("stack.backends", "mlir")
    compile_ = backend.compile

    def noted(func: Any, options: dict[str, Any]) -> Any:
        seen.append(options.get("cache"))
        return compile_(func, options)

    object.__setattr__(backend, "compile", noted)
    try:
        entry(cache=False, backend="mlir")
    finally:
        object.__setattr__(backend, "compile", compile_)
    assert seen == [False]


@pytest.mark.parametrize("name", ["mlir", "triton", "cuda", "inductor", "xla", "tvm", "eager"])
def test_backends_say_what_they_take(name: str) -> None:
    backend = plugins.load("stack.backends", name)
    check_options(backend, dict.fromkeys(backend.options))
    with pytest.raises(UsageError, match=r"is an option of stack\.compile"):
        check_options(backend, {"dynamic": True})


def test_options_of_passes_and_peers() -> None:
    with pytest.raises(UsageError, match="'max_input'; did you mean 'max_inputs'"):
        Pipeline("fuse{max_input=3}")
    with pytest.raises(UsageError, match="'trails'; did you mean 'trials'"):
        parse_backends("tvm{trails=3}")


def test_flags_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dump", "a.py:b", "--backnd", "mlir"])
    assert ended.value.code == UsageError.exit_code
    assert "'--backnd'; did you mean '--backend'" in capsys.readouterr().err


def test_what_there_is_is_named() -> None:
    assert str(unknown_name("no op", "ad", ["sub", "add"])) == (
        "no op 'ad'; did you mean 'add'? there are: add, sub"
    )
    assert str(unknown_name("no op", "zz", [])) == "no op 'zz'; there are: none"
