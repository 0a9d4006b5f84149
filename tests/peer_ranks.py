"""What one process of a GPU does in the tests of peer memory."""

from __future__ import annotations

import torch
import torch.distributed as dist

from stack.ops.collectives.peer_products import PeerProducts
from stack.ops.collectives.peer_triton import PeerMemory


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
        assert torch.equal(peers.one_shot_all_reduce(x), wanted), f"one shot, {elements}"
        assert torch.equal(peers.two_shot_all_reduce(x), wanted), f"two shot, {elements}"
        part = wanted.chunk(ranks)[rank]
        assert torch.equal(peers.reduce_scatter(x), part), f"reduce-scatter, {elements}"
        whole = x.new_empty(elements * ranks)
        dist.all_gather_into_tensor(whole, x)
        assert torch.equal(peers.all_gather(x), whole), f"all-gather, {elements}"
        given = torch.empty_like(x)
        dist.all_to_all_single(given, x)
        assert torch.equal(peers.all_to_all(x), given), f"all-to-all, {elements}"
    _replays(peers, rank)
    _products(rank, ranks, drawn)
    dist.destroy_process_group()


def _products(rank: int, ranks: int, drawn: torch.Generator) -> None:
    """Of numbers whose sums are exact, again and again in the same memory."""
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


def _replays(peers: PeerMemory, rank: int) -> None:
    """A graph of two calls, replayed with other values."""
    x = torch.zeros(4096, device=f"cuda:{rank}")
    peers.one_shot_all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = peers.two_shot_all_reduce(peers.one_shot_all_reduce(x))
    for value in range(10):
        x.fill_(value)
        graph.replay()
        assert torch.equal(made, torch.full_like(x, value * peers.world**2))
