"""Faults that are planted are found by the tests beside them, and named by bisect."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import FAULTS, Fault
from programs import TEXTS
from sweep import ROOT, sweep

from stack.faults.bisect import bisect
from stack.ir import parse


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_fault_has_one_place_and_tests(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert all((ROOT / "tests" / test.split("::")[0]).is_file() for test in fault.tests)


def test_there_are_forty() -> None:
    assert len({fault.name for fault in FAULTS}) == 40


@pytest.mark.parametrize("name", TEXTS)
def test_without_a_fault_nothing_is_wrong(name: str) -> None:
    stages = [("canonical", "inline,canonicalize,fold,decompose,canonicalize"), ("l", "layout")]
    assert bisect(parse(TEXTS[name]), stages) is None


@pytest.mark.slow
def test_how_many_are_caught_and_named(tmp_path: Path) -> None:
    found = sweep(tmp_path)
    missed = [o.name for o in found if not o.caught]
    unnamed = [(o.name, o.said) for o in found if o.named is False]
    assert len(missed) <= 2, missed
    assert len(unnamed) <= 2, unnamed
