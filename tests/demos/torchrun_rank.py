"""A rank under torchrun of which the last one misbehaves: `python torchrun_rank.py KIND LIMIT`."""

from __future__ import annotations

import os
import sys
import time

import torch

from stack.demos import rank
from stack.frontends.torch.distributed.rank_program import rank_program
from stack.ir import parse
from stack.mesh.meshes import parse_mesh

SUM = """func @f(%x: f32[4]) -> (f32[4]) at tensor {
  %y = all_reduce(%x) {kind="KIND", mesh="tp=2", over="tp"} : f32[4]
  return %y
}"""


def main(kind: str, limit: float) -> None:
    rank.join(limit)
    is_odd = os.environ["RANK"] == "1"
    text = SUM.replace("KIND", "max" if is_odd and kind == "differs" else "sum")
    program = rank_program(parse_mesh("tp=2"), parse(text), limit=limit)
    if is_odd and kind == "dies":
        os._exit(3)
    if is_odd and kind == "late":
        time.sleep(600)
    print(program(torch.ones(4)))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
