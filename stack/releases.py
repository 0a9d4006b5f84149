"""Tested releases of frameworks, a warning for other releases, and how to install one.

`make compat TORCH=... JAX=...` runs the smoke tests (tests/smoke) on a release.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import metadata


@dataclass(frozen=True)
class ReleaseRange:
    """The range of a package's releases on which the smoke tests pass.

    Attributes:
        distribution: the name under which pip knows the package.
        oldest: the first release of the range, `major.minor`.
        newest: the last release of the range; all its patch releases count as tested.
    """

    distribution: str
    oldest: str
    newest: str

    def holds(self, version: str) -> bool:
        """True if a version, such as "2.14.1+cu130", is in the range. A missing number is 0."""
        oldest, found, newest = (
            [*map(int, re.findall(r"\d+", text)), 0, 0][:2]
            for text in (self.oldest, version, self.newest)
        )
        return oldest <= found <= newest


TESTED = {
    "torch": ReleaseRange("torch", "2.11", "2.14"),
    "jax": ReleaseRange("jax", "0.10", "0.12"),
    "triton": ReleaseRange("triton", "3.6", "3.8"),
    "tvm": ReleaseRange("apache-tvm", "0.27", "0.27"),
}


@cache
def warn_if_untested(module: str) -> None:
    """Print one warning for each process if the installed release of a module was not tested.

    Does nothing for a module that `TESTED` does not list or that is not installed.
    """
    tested = TESTED.get(module)
    if tested is None:
        return
    try:
        version = metadata.version(tested.distribution)
    except metadata.PackageNotFoundError:
        return
    if not tested.holds(version):
        warnings.warn(
            f"stack was tested with {module} {tested.oldest} to {tested.newest} and continues with"
            f" the untested {version}; `make compat` in a checkout runs the smoke tests on others",
            stacklevel=2,
        )


def install_hint(extra: str) -> str:
    """Returns the shell command that installs the optional dependencies `extra` of this project. It
    needs a checkout, because the project is on no package index.
    """
    return f"pip install '.[{extra}]' in a checkout of stack"
