"""Cost of a model, counted on the traced program, compared with rules of thumb.

    python -m stack.demos.cost

Compares operations of a forward pass and a training step of GPT-2 with 2 N D and 6 N D. Shows the
bottleneck of each kind of op, prefill versus decoding, and the size of the KV cache.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from stack.demos import models, models_torch
from stack.explore.table import table
from stack.ir.cost import Cost, cost
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.run.trace import trace
from stack.target import as_gpu, load

GPU = "sm_90"
TIDY = "canonicalize,layout,canonicalize"  # transposes absorbed by matmuls cost nothing
HALF = 2  # bytes of bf16


def products(func: Func) -> int:
    """Returns the operations of all matmuls of a program."""
    return sum(int(str(cost(n).flops)) for n in func.nodes if is_contraction(n))


def forward_and_training(lengths: tuple[int, ...] = (32, 128, 512)) -> tuple[str, list[str]]:
    """Returns counted operations next to 2 N D and 6 N D, and any deviations.

    N is the number of weights that multiply every token, D the number of tokens. The rule omits the
    two matmuls of attention, which grow with the sequence: 4 S W per token and layer.
    """
    rows: list[list[object]] = []
    wrong: list[str] = []
    for seq in lengths:
        config = replace(models.TINY_GPT2, seq=seq, batch=1)
        module, args = models_torch.make_gpt2(config)
        tokens = config.batch * seq
        shapes = models.gpt2_shapes(config)
        matrices = [s for name, s in shapes.items() if len(s) == 2 and name != "wpe.weight"]
        weights = sum(a * b for a, b in matrices)
        attention = config.layers * 4 * tokens * seq * config.width
        forward = products(trace(module, *args))
        step = products(gradients_of(module, args))
        if forward != 2 * weights * tokens + attention:
            wrong.append(f"S={seq}: {forward} operations, 2 N D and attention are others")
        rows.append(
            [
                seq,
                f"{forward / 1e6:.1f} M",
                f"{2 * weights * tokens / 1e6:.1f} M",
                f"{100 * attention / forward:.0f} %",
                f"{step / 1e6:.1f} M",
                f"{step / (6 * weights * tokens):.2f}",
            ]
        )
    heads = ["S", "forward", "2 N D", "attention", "training step", "of 6 N D"]
    return table(heads, rows), wrong


def regimes(seq: int) -> tuple[str, dict[str, Cost]]:
    """Returns operations, bytes and bottleneck of each op of a GPT-2 block at S tokens."""
    module, args = models_torch.make_gpt2_block(replace(models.GPT2, seq=seq))
    found: dict[str, Cost] = {}
    for node in Pipeline(TIDY).run(trace(module, *args)).func.nodes:
        found[_kind(node)] = found.get(_kind(node), Cost()).plus(cost(node))
    machine = as_gpu(load(GPU))
    ridge = machine.f32_rate / machine.memory_rate
    rows: list[list[str]] = []
    for kind, each in found.items():
        flops, moved = int(str(each.flops)), int(str(each.bytes))
        if not moved:
            continue
        limit = "compute" if flops / moved > ridge else "memory"
        row = [kind, f"{flops / 1e6:.2f} M", f"{moved / 1e6:.2f} MB", f"{flops / moved:.2f}", limit]
        rows.append(row)
    rows.sort()
    head = f"a GPT-2 block, {seq} tokens, on {GPU} in f32: the ridge is at {ridge:.1f} flop/byte"
    return f"{head}\n{table(['ops', 'flop', 'bytes', 'flop/byte', 'limit'], rows)}", found


def _kind(node: Node) -> str:
    return node.op if is_contraction(node) or node.op == "reduce" else "others"


def cache(config: models.LlamaConfig, layers: int, tokens: int) -> str:
    """Returns a table of KV cache sizes by head layout: of one token, and of `tokens` tokens."""
    rows: list[list[object]] = []
    for name, heads in (("MHA", config.heads), ("GQA", config.kv_heads), ("MQA", 1)):
        each = 2 * layers * heads * config.head_dim * HALF
        rows.append([name, heads, f"{each / 1024:.0f} KiB", f"{each * tokens / 2**30:.2f} GiB"])
    return table(["cache", "heads", "a token", f"{tokens} tokens"], rows)


def main() -> int:
    """Prints counts, bottlenecks and caches; returns 1 if a count differs from the formula."""
    print("operations of GPT-2, matmuls only\n")
    text, wrong = forward_and_training()
    print(text + "\n\nprefill, then decoding one token: the same weights for one row\n")
    for seq in (512, 1):
        print(regimes(seq)[0] + "\n")
    print("Llama-3-8B: 32 layers, 32 heads of 128, 8 for keys and values, bf16\n")
    print(cache(models.LlamaConfig(width=4096, heads=32, kv_heads=8), 32, 131072))
    print("\n".join(wrong) or "\nevery count is 2 N D and what attention adds, to the operation")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
