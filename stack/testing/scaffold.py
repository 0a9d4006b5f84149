"""Generates the package of a new pass: code, entry point, tests, and a README."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

from stack.errors import UsageError, unknown_name

KINDS = {
    "pattern": "a rule that replaces what it matches",
    "fusion": "a fusion rule: which producer and consumer are one kernel",
    "horizontal": "a fusion rule for neighbours that read one value",
    "rewrite": "a pass over whole blocks",
    "schedule": "a policy that writes the steps of each kernel",
}
# the position of a pass in a pipeline: a fusion pass replaces the built-in one, which would leave
# it nothing to join
PLACES = {
    "fusion": "default,-fuse,+{}@fused",
    "horizontal": "default,-fuse,+{}@fused",
    "schedule": "default,+{}@scheduled",
}

ROUNDING = """- A rule may round differently. One that is inexact by design says how far:
  `@on("mul", inexact=stack.rewrite.WIDER)` where an intermediate value may overflow in the program
  alone, `FINITE` if it holds for finite inputs only, `Inexact(error=1e-3)` for an approximation.
  Checks accept no more."""
REFUSED = """- If a step is not legal for a group, the group keeps the compiler's steps.
  `stackc explain` prints the step and the rule that it breaks.
- `stackc glossary STEP` defines a step. `stackc show r1 NAME.step2` shows the kernel of a value
  after step 2; `NAME.step0` is the nest that `steps` gets."""


def new_pass(name: str, kind: str, folder: str | Path = ".") -> Path:
    """Writes the package of a pass and returns its folder.

    Raises UsageError for a name that is no Python name, and if the folder exists.
    """
    if kind not in KINDS:
        raise unknown_name("no kind of pass", kind, KINDS)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"a pass is called by a Python name in small letters, not {name!r}")
    root = Path(folder) / name
    try:
        root.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{root} exists already") from error
    except OSError as error:
        raise UsageError(f"cannot create {root}: {error.strerror}") from error
    cls = "".join(part.capitalize() for part in name.split("_"))
    is_steps = kind == "schedule"
    many = f"{'stackc explain r1 A B':38}did it make one kernel of A and B, and if not, why"
    one = f"{'stackc explain r1 NAME':38}its steps for a value, or why they are refused"
    words = {
        "watch": "--steps " if is_steps else "",
        "ask": one if is_steps else many,
        "refused": REFUSED if is_steps else ROUNDING,
        "name": name,
        "cls": cls,
        "passes": PLACES.get(kind, "default,+{}@canonical").format(f"{name}.py:{cls}"),
        "what": KINDS[kind],
    }
    templates = files("stack.testing").joinpath("templates")
    written = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{name}.py": f"{kind}.py",
        "tests/conftest.py": "conftest.py",
        f"tests/test_{name}.py": f"test_{kind}.py",
        f"tests/{name}.stack": f"{kind}.stack",
    }
    for target, source in written.items():
        path = root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        text = templates.joinpath(f"{source}.txt").read_text("utf-8")
        path.write_text(Template(text).substitute(words), encoding="utf-8")
    return root
