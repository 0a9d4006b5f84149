"""Small functions for tests of passes: `%z` of lines `%z = ...`, before and after a pass.

Values are kept on inputs of all kinds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stack.ir import Func, parse
from stack.rewrite import Pipeline
from stack.rewrite.truth import Truth

Rewrites = dict[str, tuple[str, str, str]]  # parameters, lines before, lines after
Kept = dict[str, tuple[str, str]]


def func(params: str, lines: str) -> Func:
    """The last of the lines `%z = op(...) : type` is the result, or a parameter alone."""
    body = [line.strip() for line in lines.strip().splitlines()]
    name, _, rest = body[-1].partition(" = ")
    if rest:
        kind = rest.rsplit(" : ", 1)[1]
        text = "".join(f"  {line}\n" for line in body)
    else:
        text = ""
        (kind,) = re.findall(rf"{name}: (\w+\[[^\]]*\])", params)
    return parse(f"func @main({params}) -> ({kind}) at tensor {{\n{text}  return {name}\n}}\n")


def check_rewrite(pipeline: str, case: tuple[str, str, str], kinds: Sequence[str] = ()) -> None:
    """The pass makes the expected nodes, keeps the values, and does nothing the second time.

    `kinds`: of inputs that the values are kept on; by default all.
    """
    params, before, after = case
    program = func(params, before)
    result = Pipeline(pipeline).run(program, check=True)
    assert Truth(program).problem(result.func, kinds) == ""
    want = func(params, after)
    assert result.func.results == want.results, f"{result.func}\n{want}"
    assert Pipeline(pipeline).run(result.func).func is result.func


def check_kept(pipeline: str, case: tuple[str, str]) -> None:
    before = func(*case)
    result = Pipeline(pipeline).run(before)
    assert result.func is before, str(result.func)
