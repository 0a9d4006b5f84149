from __future__ import annotations

import re
from typing import Any

from stack.demos.gemm_ladder import Rung, check, lowered, matmul
from stack.ir.node import walk


def _block(text: str) -> dict[str, int]:
    return {f"{axis}@{kind}": int(n) for axis, n, kind in re.findall(r"(\w)=(\d+)@(\w+)", text)}


def _ops(text: str) -> set[str]:
    func = lowered(Rung("yours", text, ""), matmul(256, 256, 512))
    return {node.op for _, node in walk(func.body)}


def check_transactions(student: Any) -> None:
    """transactions: 1 along a row, 32 down a column of long rows"""
    assert student.transactions(2) == 1
    assert student.transactions(4) == 1
    assert student.transactions(8) == 2
    assert student.transactions(8192) == 32
    assert student.transactions(126) == len(
        {(i * 126 + b) // 128 for i in range(32) for b in (0, 1)}
    )


def check_coalesced(student: Any) -> None:
    """coalesced has the asked blocks, and computes the product"""
    block = _block(student.coalesced())
    assert block == {"m@grid": 16, "n@grid": 32, "n@lane": 1}, block
    check(Rung("coalesced", student.coalesced(), ""))


def check_tensor(student: Any) -> None:
    """tensor has the asked blocks and stages, and runs on tensor cores"""
    text = student.tensor()
    block = _block(text)
    assert block == {"m@grid": 64, "n@grid": 128, "k@serial": 32}, block
    assert "stages=2" in text
    assert "mma_sync" in _ops(text), "no tensor core takes part"
