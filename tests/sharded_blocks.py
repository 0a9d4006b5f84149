"""Blocks of a transformer as IR, for tests of their partition on a mesh."""

from __future__ import annotations

from stack.ir import Builder, Func, Node, param, tensor

B, T, D, F, H = 4, 4, 32, 128, 4  # weights are larger than activations


class Blocks(Builder):
    """Grows a function of blocks; weights are its parameters."""

    def __init__(self, tokens: int = T) -> None:
        super().__init__()
        self.x = param("x", tensor("f32", B, tokens, D))
        self.params: list[Node] = [self.x]

    def weight(self, name: str, rows: int, columns: int) -> Node:
        self.params.append(param(name, tensor("f32", rows, columns)))
        return self.params[-1]

    def linear(self, x: Node, name: str, rows: int, columns: int) -> Node:
        w = self.weight(name, rows, columns)
        return self.op("dot", [x, w], {"rule": "b t k, k n -> b t n"})

    def mlp(self, x: Node, tag: str = "") -> Node:
        return self.linear(self.tanh(self.linear(x, f"up{tag}", D, F)), f"down{tag}", F, D)

    def attention(self, x: Node, tag: str = "") -> Node:
        heads = tensor("f32", *self.x.shape[:2], H, D // H)
        q, k, v = (
            self.reshape(self.linear(x, f"{n}{tag}", D, D), type=heads) for n in ("wq", "wk", "wv")
        )
        s = self.dot(q, k, rule="b q h d, b k h d -> b h q k")
        top = self.broadcast(self.reduce(s, kind="max", axes=(3,)), axes=(0, 1, 2), type=s.type)
        e = self.exp(self.sub(s, top))
        total = self.broadcast(self.reduce(e, kind="sum", axes=(3,)), axes=(0, 1, 2), type=s.type)
        o = self.dot(self.div(e, total), v, rule="b h q k, b k h d -> b q h d")
        return self.linear(self.reshape(o, type=self.x.type), f"wo{tag}", D, D)

    def norm(self, x: Node) -> Node:
        mean = self.reduce(self.mul(x, x), kind="sum", axes=(2,))
        scale = self.rsqrt(self.add(mean, 1.0))
        return self.mul(x, self.broadcast(scale, axes=(0, 1), type=x.type))

    def made(self, *results: Node) -> Func:
        return self.func("block", self.params, results)


def mlp(tokens: int = T) -> Func:
    b = Blocks(tokens)
    return b.made(b.mlp(b.x))


def attention() -> Func:
    b = Blocks()
    return b.made(b.attention(b.x))


def layers(count: int) -> Func:
    b = Blocks()
    x = b.x
    for i in range(count):
        x = b.add(x, b.attention(b.norm(x), f"{i}"))
        x = b.add(x, b.mlp(b.norm(x), f"{i}"))
    return b.made(x)


def parallel() -> Func:
    """Attention and MLP side by side, as in GPT-J: both sums end in one residual."""
    b = Blocks()
    h = b.norm(b.x)
    return b.made(b.add(b.x, b.add(b.attention(h), b.mlp(h))))


TENSOR_PARALLEL = ("w[qkv]*: -, tp", "up*: -, tp", "wo*: tp", "down*: tp")
