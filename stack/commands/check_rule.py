"""`stackc check-rule`: a counterexample for a rewrite rule, or how many inputs agreed."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.commands import common
from stack.commands.opt import read
from stack.explore.table import table
from stack.ir.ops import find
from stack.rewrite.check import Inexact
from stack.testing.rules.branches import function_of
from stack.testing.rules.named import rules_named
from stack.testing.rules.proof import PROGRAMS, TRIES, Proof, check_rule

SCHEMA = "rules/1"
CHECK = """
    Check rewrite rules: print the smallest counterexample (program, inputs, both results), or how
    many inputs agreed and the largest error. Exit code 1 if a rule is wrong, or if no program was
    found on which it applies.

    Programs are found by a search: it starts from one node of each op that the rule is for, and
    changes what makes the rule's code run further. Where a program computes each element alone, all
    values are tried if there are at most 65,536 inputs (two operands of 8 bits, one of 16), else
    special values in all combinations, inputs of all kinds, and for floats a search of intervals
    for the largest error. Other programs get inputs of all kinds; see the how-to guide on
    miscompiles.

    An error is judged as by `opt --check`: a result may round differently; a rule that is less
    exact by design states it, as @on("mul", inexact=WIDER). ULP is the number of floats between
    both results, where the program itself is accurate.

    examples:
      stackc check-rule mine.py:my_rule           one rule of a file
      stackc check-rule mine.py                   all rules of a file
      stackc check-rule canonicalize:twice        a rule of a pass that ships
      stackc check-rule canonicalize:twice --exact
      stackc check-rule mine.py:my_rule --on block.stack
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of `stackc check-rule`."""
    parser = common.command(
        subparsers, "check-rule", run_check, "a proof or a counterexample for a rule", CHECK
    )
    parser.add_argument(
        "rules",
        metavar="RULE",
        help="file.py:rule, pkg.mod:rule or PASS:rule; without a rule, all of the file or pass",
    )
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="FILE",
        help="check it on this program first: a file of IR text, or RUN:STAGE; repeatable",
    )
    parser.add_argument(
        "--exact", action="store_true", help="accept no other bit, and no zero of the other sign"
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=TRIES,
        metavar="N",
        help="programs that the search calls a rule on (default: %(default)s)",
    )
    parser.add_argument(
        "--programs",
        type=int,
        default=PROGRAMS,
        metavar="N",
        help="programs that are judged for each rule (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of random inputs")
    common.add_json(parser, SCHEMA)


def run_check(args: argparse.Namespace) -> int:
    """Checks the rules that a name means; returns 1 if one is wrong or was not reached."""
    rules, given = rules_named(args.rules), [read(file) for file in args.on]
    proofs: list[Proof] = []
    for rule in rules:
        if len(rules) > 1:
            common.progress(f"checking {rule.name}")
        options = {"tries": args.tries, "programs": args.programs, "seed": args.seed}
        proofs.append(check_rule(rule, given, exact=args.exact, **options))
    if args.json:
        common.print_json({"schema": SCHEMA, "rules": [document(p) for p in proofs]})
    else:
        print(summary(proofs) if len(proofs) > 1 else details(proofs[0]))
    return int(any(p.verdict != "agrees" for p in proofs))


def details(proof: Proof) -> str:
    """Formats what was found about one rule."""
    rule, wrong = proof.rule, proof.wrong
    lines = [f"{rule.name}{_place(proof)}: {_first_sentence(proof)}", f"states: {stated(proof)}"]
    if wrong is not None:
        return "\n".join([*lines, "", "WRONG", str(wrong)])
    if not proof.programs:
        return "\n".join(
            [*lines, "", "NOT REACHED: no program was found on which the rule applies."]
            + [f"There is no op {name}: `stackc ops` lists all." for name in _no_ops(proof)]
            + ["Give one with --on FILE, or search longer with --tries."]
        )
    lines += ["", f"agrees on {proof.inputs:,} inputs of {proof.programs} programs"]
    if proof.complete:
        lines.append(f"all inputs were tried of {proof.complete} of them")
    lines.append(f"element types: {', '.join(proof.types) or 'none, the programs take no inputs'}")
    lines.append(f"largest error: {_error(proof)}")
    if proof.worst is not None:
        lines += ["", str(proof.worst)]
    return "\n".join(lines)


def summary(proofs: Sequence[Proof]) -> str:
    """Formats a table with a row for each rule, and the counterexamples after it."""
    head = ["rule", "verdict", "programs", "all inputs", "inputs", "error", "states"]
    rows = [
        [
            p.rule.name,
            p.verdict,
            p.programs,
            p.complete,
            f"{p.inputs:,}",
            _error(p) if p.programs else "",
            stated(p),
        ]
        for p in proofs
    ]
    note = "programs: judged, all inputs: of how many all were tried"
    lines = [table(head, rows, drop=["states", "all inputs"], note=note)]
    for p in proofs:
        if p.wrong is not None:
            lines += ["", f"{p.rule.name}{_place(p)}", str(p.wrong)]
    return "\n".join(lines)


def document(proof: Proof) -> dict[str, Any]:
    """Returns what was found about one rule, for JSON."""
    return {
        "rule": proof.rule.name,
        "verdict": proof.verdict,
        "programs": proof.programs,
        "complete": proof.complete,
        "inputs": proof.inputs,
        "types": proof.types,
        "ulps": proof.error,
        "states": stated(proof),
        "worst": str(proof.worst) if proof.worst is not None else "",
        "counterexample": str(proof.wrong) if proof.wrong is not None else "",
    }


def stated(proof: Proof) -> str:
    """Describes the difference of results that a rule states."""
    inexact = proof.stated
    if inexact == Inexact():
        return "no inexactness, so results may differ by rounding only"
    said = [f"a relative error of {inexact.error:g}"] if inexact.error else []
    said += ["more range and precision for intermediate values"] if inexact.wider else []
    said += ["finite inputs only"] if inexact.finite else []
    return ", ".join(said)


def _no_ops(proof: Proof) -> list[str]:
    """Returns the names of ops that a rule is for, but that do not exist."""
    return [name for name in getattr(proof.rule, "roots", ()) if find(name) is None]


def _error(proof: Proof) -> str:
    return f"{proof.error:.4g} ULP" if proof.error else "0"


def _place(proof: Proof) -> str:
    function = function_of(proof.rule)
    if function is None:
        return ""
    code = function.__code__
    return f", {Path(code.co_filename).name}:{code.co_firstlineno}"


def _first_sentence(proof: Proof) -> str:
    text = inspect.cleandoc(getattr(proof.rule, "doc", "") or "no description")
    return text.partition("\n\n")[0].replace("\n", " ")
