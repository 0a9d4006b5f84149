"""Faulty rules as students write them are caught by every check, and named by bisect."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from slips import PROGRAMS, RULES, Slips

from stack.cli import main
from stack.faults.bisect import bisect
from stack.ir import parse
from stack.rewrite import CheckError, Pipeline
from stack.rewrite.truth import Truth
from stack.testing import check_pass
from stack.testing.passes import PassError

FILE = Path(__file__).with_name("slips.py")
NAMES = [rule.name for rule in RULES]
QUICK = 5  # seconds that all checks of one small program may take on a busy machine


def test_there_are_thirty() -> None:
    assert len(set(NAMES)) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_a_slip_is_caught_and_named(name: str) -> None:
    """By `check_pass`, by `opt --check`, and by bisect: with its rule and its source line."""
    func, slip = parse(PROGRAMS[name]), Slips(name)
    start = time.process_time()
    with pytest.raises(PassError, match=f"rewrite 1, by {name}, at %"):
        check_pass(slip, [func], graphs=False)
    with pytest.raises(CheckError) as caught:
        Pipeline([slip]).run(func, check=True)
    assert f"by {name}" in caught.value.__notes__[0]
    found = bisect(func, [("imported", "inline"), ("mine", f"{FILE}:Slips{{only={name}}}")])
    assert found is not None
    assert (found.stage, found.rule, found.number) == ("mine", name, 1)
    assert found.nodes and found.source
    assert time.process_time() - start < QUICK


@pytest.mark.parametrize("name", NAMES)
def test_without_the_slip_nothing_is_wrong(name: str) -> None:
    func = parse(PROGRAMS[name])
    stages = [("canonical", "inline,canonicalize,fold,decompose,canonicalize"), ("l", "layout")]
    assert bisect(func, stages) is None
    assert set(Truth(func).kinds) >= {"plain", "zeros"}


@pytest.mark.parametrize("name", ["exp_sum", "no_eps", "shifted"])
def test_the_commands_find_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.stack"
    path.write_text(PROGRAMS[name])
    slip = f"{FILE}:Slips{{only={name}}}"
    passes = ["--passes", f"default,+{slip}@canonical"]
    assert main(["bisect", str(path), *passes]) == 1
    assert f"rewrite 1, by {name}" in capsys.readouterr().out
    assert main(["dump", str(path), "--check", *passes]) == 1
    assert f"rewrite 1, by {name}" in capsys.readouterr().out
    assert main(["opt", str(path), f"--pass-pipeline={slip}", "--check"]) == 1
    assert f"by {name}" in capsys.readouterr().err
    assert main(["dump", str(path), "--check"]) == 0
