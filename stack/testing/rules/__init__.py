"""A counterexample for a rewrite rule, or how many inputs agreed: `stackc check-rule`."""

from __future__ import annotations

from stack.testing.rules.proof import Counterexample, Proof, check_rule

__all__ = ["Counterexample", "Proof", "check_rule"]
