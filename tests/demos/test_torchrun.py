"""Ranks that torchrun starts: the command of the README, and ranks that misbehave."""

from __future__ import annotations

import re

import pytest
from started_ranks import ROOT, torchrun

pytest.importorskip("torch")

README = ROOT / "passes/sharding/README.md"


@pytest.mark.slow
def test_the_command_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    (command,) = re.findall(r"^ {4}torchrun (.+demos\.torchrun)$", text, re.M)
    found = torchrun(*command.split())
    assert found.returncode == 0, found.stderr
    (error,) = re.findall(r"4 ranks on dp=2, tp=2: within (\S+) of one process", found.stdout)
    assert float(error) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("dies", "exitcode  : 3"),
        ("late", "StackError: rank 0 got no answer in all_reduce"),
        ("differs", r"UsageError: ranks \[1\] were given another program than rank 0"),
    ],
)
def test_a_rank_that_misbehaves_ends_the_run(kind: str, told: str) -> None:
    found = torchrun("--nproc-per-node", "2", str(ROOT / "tests/demos/torchrun_rank.py"), kind, "8")
    assert found.returncode != 0
    assert re.search(told, found.stderr), found.stderr
