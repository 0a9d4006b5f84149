"""Every op on simulated meshes, with random places and uneven sizes: parts equal the whole."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from op_instances import LEAVES, instance
from sharded_cases import MESHES, annotated, differences, function, run

from stack.ir.ops import OPS
from stack.ir.tensor_ops import TENSOR_OPS

OUTSIDE = ("opaque", "custom", "kernel")
NAMES = sorted(n for n in TENSOR_OPS - set(LEAVES) - set(OUTSIDE) if OPS[n].kind != "collective")


@pytest.mark.every(3)
@pytest.mark.parametrize("op", NAMES)
def test_parts_equal_the_whole(op: str) -> None:
    rng = random.Random(f"sharded {op}")
    wanted = 4 if OPS[op].kind == "elementwise" else 20
    done = 0
    sent: Counter[str] = Counter()
    while done < wanted:
        made = instance(op, rng)
        if made is None or not all(np.asarray(a).size for a in made[1]):
            continue
        func = function(made[0])
        case = annotated(func, rng.choice(MESHES), rng)
        if not case.meshes:
            continue
        done += 1
        found = run(case, made[1])
        dtypes = [r.dtype.name for r in func.results]
        wrong = differences(func.interpret(*made[1]), found.results, dtypes)
        assert not wrong, f"{case}{wrong}"
        sent.update(found.counts)
    print(f"{op}: {done} cases, {dict(sent)}")
