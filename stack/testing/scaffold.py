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
    words = {
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
