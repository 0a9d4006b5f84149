"""What READMEs of these families show is what there is."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from stack.hosted import declared

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("family", ["qgemm", "moe"])
def test_examples_and_names(family: str) -> None:
    file = ROOT / "ops" / family / "README.md"
    failed, tried = doctest.testfile(str(file), module_relative=False)
    assert tried and not failed
    named = set(re.findall(r"`(\w+)`", file.read_text(encoding="utf-8")))
    own = {n.partition(".")[2] for n in declared() if n.startswith(f"{family}.")}
    assert own <= named, own - named
    for name in re.findall(r"`(\w+\.py|\w+/)`", file.read_text(encoding="utf-8")):
        assert (file.parent / name).exists(), name
