"""The work of one process of a GPU in the tests of peer memory."""

from __future__ import annotations

import torch
import torch.distributed as dist

from stack.errors import StackError
from stack.ops.collectives.peer_memory import WAYS, PeerMemory, predicted
from stack.ops.collectives.peer_products import PeerProducts


def compare(rank: int, ranks: int, store: str) -> None:
    """All against NCCL, in changing order and sizes; raises where something differs."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=ranks, device_id=device
    )
    peers = PeerMemory(1 << 24)
    drawn = torch.Generator(device).manual_seed(rank)
    for turn in range(60):
        elements = (8, 24, 4096, 100_008, 1 << 20)[turn % 5] * ranks // 8 * 8
        x = torch.randint(-8, 8, (elements,), device=device, generator=drawn).bfloat16()
        if turn % 3 == 0:
            torch.cuda._sleep(rank * 200_000)  # nobody is in step
        wanted = x.clone()
        dist.all_reduce(wanted)
        whole = x.new_empty(elements * ranks)
        dist.all_gather_into_tensor(whole, x)
        given = torch.empty_like(x)
        dist.all_to_all_single(given, x)
        part = wanted.chunk(ranks)[rank]
        results = dict(zip(WAYS, (wanted, part, whole, given), strict=True))
        for collective, result in results.items():
            for way in ways(collective, ranks, x.nbytes):
                found = getattr(peers, collective)(x, way)
                assert torch.equal(found, result), f"{collective} {way}, {elements}"
    _norms(peers, rank, drawn)
    _replays(peers, rank)
    _products(rank, ranks, drawn)
    _without_the_last(rank, ranks)
    dist.destroy_process_group()


def ways(collective: str, ranks: int, size: int) -> list[str]:
    """All that take so many bytes; "" is the one that should be fastest."""
    return ["", *predicted(collective, ranks, size)]


def _norms(peers: PeerMemory, rank: int, drawn: torch.Generator) -> None:
    """Sums are exact, so that only the norm's own rounding is left."""
    for tokens, width in ((1, 4096), (8, 8192), (64, 4096), (66, 96), (1500, 4096)):
        for _ in range(3):
            x = torch.randint(-8, 8, (tokens, width), device=drawn.device, generator=drawn)
            x = x.bfloat16()
            residual = torch.linspace(-4, 4, x.numel(), device=x.device).bfloat16().view_as(x)
            weight = torch.linspace(0.5, 2, width, device=x.device).bfloat16()
            total = x.clone()
            dist.all_reduce(total)
            total += residual
            wide = total.double()
            norm = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * weight.double()
            for way in ways("all_reduce", peers.world, x.nbytes):
                if way == "two_shot" and tokens % peers.world:
                    continue
                torch.cuda._sleep(rank * 100_000)
                y, added = peers.all_reduce_norm(x, residual, weight, way=way)
                assert torch.equal(added, total), f"residual {way}, {tokens} x {width}"
                error = float((y.double() - norm).norm() / norm.norm())
                assert error < 4e-3, f"norm {way}, {tokens} x {width}: {error}"


def _products(rank: int, ranks: int, drawn: torch.Generator) -> None:
    """Products of numbers whose sums are exact, again and again in the same memory."""
    products = PeerProducts(64 * 96 * 2)
    for turn in range(20):
        x, w, y, v = (
            torch.randint(-2, 3, shape, device=drawn.device, generator=drawn).bfloat16()
            for shape in ((64, 32), (32, 40), (64 * ranks, 16), (16, 96))
        )
        if turn % 3 == 0:
            torch.cuda._sleep(rank * 200_000)
        whole = x.new_empty(64 * ranks, 32)
        dist.all_gather_into_tensor(whole, x)
        assert torch.equal(products.gather_gemm(x, w), whole @ w), "all-gather + GEMM"
        part = y.new_empty(64, 96)
        dist.reduce_scatter_tensor(part, y @ v)
        assert torch.equal(products.gemm_scatter(y, v), part), "GEMM + reduce-scatter"


def _without_the_last(rank: int, ranks: int) -> None:
    """A rank that does not come ends the wait of the others, in time."""
    peers = PeerMemory(1 << 12, limit=0.2)
    if rank < ranks - 1:
        x = torch.ones(64, device=f"cuda:{rank}")
        for way in ("push", "one_shot", "two_shot"):
            peers.failed.zero_()
            peers.all_reduce(x, way)
            try:
                peers.wait()
            except StackError:
                continue
            raise AssertionError(f"{way}: nobody says that a rank did not come")
    dist.barrier()


def _replays(peers: PeerMemory, rank: int) -> None:
    """A graph of three calls, replayed with other values."""
    x = torch.zeros(4096, device=f"cuda:{rank}")
    peers.all_reduce(x, "push")
    peers.all_reduce(x, "two_shot")
    peers.all_reduce(x, "one_shot")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = peers.all_reduce(x, "one_shot")
        made = peers.all_reduce(peers.all_reduce(made, "push"), "two_shot")
    for value in range(10):
        x.fill_(value)
        graph.replay()
        assert torch.equal(made, torch.full_like(x, value * peers.world**3))
