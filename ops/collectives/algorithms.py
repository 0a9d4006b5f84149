"""The classical algorithms as schedules.

Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005):
ring, recursive halving and doubling, binomial tree. Bruck et al., "Efficient Algorithms for
All-to-All Communications" (1997). Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan" (2009): the double tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.errors import UsageError
from stack.ops.collectives.schedule import Schedule, Step, Transfer, embedded, together

Slots = tuple[int, ...]


def build(collective: str, algorithm: str, ranks: int, **options: int) -> Schedule:
    """Builds a schedule by name, and proves it.

    Raises UsageError for an unknown name, or a number of ranks that the algorithm does not
    support.
    """
    known = algorithms_of(collective)
    if algorithm not in known:
        raise UsageError(f"no algorithm {algorithm!r} for {collective}; there are: {known}")
    if ranks < 1:
        raise UsageError(f"{ranks} ranks; there must be at least one")
    return ALGORITHMS[collective, algorithm](ranks, **options).prove()


def algorithms_of(collective: str) -> list[str]:
    """The names of a collective's algorithms. Raises UsageError for an unknown collective."""
    found = [name for of, name in ALGORITHMS if of == collective]
    if not found:
        known = ", ".join(dict.fromkeys(of for of, _ in ALGORITHMS))
        raise UsageError(f"no collective {collective!r}; there are: {known}")
    return found


# ---- reduce-scatter, all-gather, and all-reduce as their sequence


def ring_reduce_scatter(n: int) -> Schedule:
    """Passes each chunk once around the ring; every rank adds its part."""
    steps = tuple(
        tuple(_moves(r, (r + 1) % n, [(r - t - 1) % n], adds=True) for r in range(n))
        for t in range(n - 1)
    )
    return _scattering("ring", n, steps)


def halving_reduce_scatter(n: int) -> Schedule:
    """Exchanges half of the remaining data, with a partner at half the distance in each step."""
    _check_power(n, "halving")
    held = [range(n)] * n
    steps: list[Step] = []
    distance = n // 2
    while distance:
        step: list[Transfer] = []
        for r in range(n):
            middle = held[r].start + distance
            low, high = range(held[r].start, middle), range(middle, held[r].stop)
            held[r], given = (high, low) if r & distance else (low, high)
            step.append(_moves(r, r ^ distance, given, adds=True))
        steps.append(tuple(step))
        distance //= 2
    return _scattering("halving", n, tuple(steps))


def direct_reduce_scatter(n: int) -> Schedule:
    """Every rank sends every other its chunk, all in one step."""
    step = tuple(_moves(s, r, [r], adds=True) for r in range(n) for s in range(n) if s != r)
    return _scattering("direct", n, (step,) if step else ())


def ring_all_gather(n: int) -> Schedule:
    """Each rank passes on the chunk that it received last."""
    steps = tuple(
        tuple(_moves(r, (r + 1) % n, [(r - t) % n]) for r in range(n)) for t in range(n - 1)
    )
    return _gathering("ring", n, steps)


def doubling_all_gather(n: int) -> Schedule:
    """Exchanges all gathered data, with a partner at twice the distance in each step."""
    _check_power(n, "doubling")
    steps: list[Step] = []
    distance = 1
    while distance < n:
        blocks = [r // distance * distance for r in range(n)]
        steps.append(
            tuple(_moves(r, r ^ distance, range(b, b + distance)) for r, b in enumerate(blocks))
        )
        distance *= 2
    return _gathering("doubling", n, tuple(steps))


def direct_all_gather(n: int) -> Schedule:
    """Every rank sends its chunk to every other, all in one step."""
    step = tuple(_moves(s, r, [s]) for s in range(n) for r in range(n) if s != r)
    return _gathering("direct", n, (step,) if step else ())


def ring_all_reduce(n: int) -> Schedule:
    """A reduce-scatter and an all-gather around the ring: fewest bytes, most steps."""
    return _reducing("ring", n, n, ring_reduce_scatter(n).steps + ring_all_gather(n).steps)


def two_shot_all_reduce(n: int) -> Schedule:
    """Each rank reduces one chunk, then sends it to all."""
    steps = direct_reduce_scatter(n).steps + direct_all_gather(n).steps
    return _reducing("two_shot", n, n, steps)


def one_shot_all_reduce(n: int) -> Schedule:
    """Every rank receives all data and adds it in the same order, so that all get the same bits."""
    give = tuple(Transfer(s, r, (0,), (1 + s,)) for s in range(n) for r in range(n))
    first = tuple(Transfer(r, r, (1,), (0,)) for r in range(n))
    rest = tuple(Transfer(r, r, (1 + s,), (0,), True) for r in range(n) for s in range(1, n))
    steps = (give, first, rest) if n > 1 else ()
    return _reducing("one_shot", n, 1, steps, slots=n + 1)


def halving_doubling_all_reduce(n: int) -> Schedule:
    """Halving, then doubling; ranks beyond a power of two first send their part to a neighbour."""
    size = 1 << (n.bit_length() - 1)
    extra = n - size
    members = [*range(1, 2 * extra, 2), *range(2 * extra, n)]
    core = halving_reduce_scatter(size).steps + doubling_all_gather(size).steps
    whole = range(size)
    inner = embedded(_reducing("", size, size, core), members, [(s,) for s in whole])
    before = tuple(_moves(r, r + 1, whole, adds=True) for r in range(0, 2 * extra, 2))
    after = tuple(_moves(r + 1, r, whole) for r in range(0, 2 * extra, 2))
    steps = ((before,) if extra else ()) + inner + ((after,) if extra else ())
    return _reducing("halving_doubling", n, size, steps)


def double_tree_all_reduce(n: int, chunks: int = 8) -> Schedule:
    """Two trees carry half of the chunks each, in a pipeline: sums go up, results down.

    A rank that is a leaf of one tree is an inner node of the other, so that every link is used in
    both directions. `chunks`: number of chunks in the pipeline, at least 2.
    """
    if chunks < 2:
        raise UsageError(f"a double tree needs at least 2 chunks, not {chunks}")
    parents = _tree(0, n)
    trees = [(parents, 0), (parents, 1)]
    parts = [
        _piped(
            {(r + shift) % n: None if p is None else (p + shift) % n for r, p in found.items()},
            range(shift, chunks, 2),
        )
        for found, shift in trees
    ]
    return _reducing("double_tree", n, chunks, together(parts))


def hierarchical_all_reduce(n: int, group: int = 2) -> Schedule:
    """Reduce-scatter within groups of neighbours, all-reduce across groups, all-gather within.

    Each rank of a group sends only its part of the data to other groups.
    """
    if group < 1 or n % group:
        raise UsageError(f"{n} ranks cannot be split into groups of {group}")
    many = n // group
    runs = [range(i * many, (i + 1) * many) for i in range(group)]
    groups = [range(g * group, (g + 1) * group) for g in range(many)]
    scatter, gather = ring_reduce_scatter(group), ring_all_gather(group)
    across = ring_all_reduce(many)
    between = [
        embedded(across, range(i, n, group), [(s,) for s in run]) for i, run in enumerate(runs)
    ]
    steps = (
        together([embedded(scatter, members, runs) for members in groups])
        + together(between)
        + together([embedded(gather, members, runs) for members in groups])
    )
    return _reducing("hierarchical", n, n, steps)


# ---- all-to-all, broadcast, permute


def pairwise_all_to_all(n: int) -> Schedule:
    """In step t, each rank sends to the rank t further on."""
    own = tuple(Transfer(r, r, (r,), (n + r,)) for r in range(n))
    steps = tuple(
        tuple(Transfer(r, (r + t) % n, ((r + t) % n,), (n + r,)) for r in range(n))
        for t in range(1, n)
    )
    return _exchanging("pairwise", n, (own, *steps))


def direct_all_to_all(n: int) -> Schedule:
    """Sends all messages in one step."""
    step = tuple(Transfer(s, r, (r,), (n + s,)) for s in range(n) for r in range(n))
    return _exchanging("direct", n, (step,))


def bruck_all_to_all(n: int) -> Schedule:
    """A logarithmic number of steps: a chunk hops by each power of two in its distance."""
    steps: list[Step] = []
    hop = 1
    while hop < n:
        far = [j for j in range(n) if j & hop]
        steps.append(tuple(_moves(r, (r + hop) % n, far) for r in range(n)))
        hop *= 2
    # slot j is for data with j hops to go, and in the end for data that came j hops
    inputs = tuple(tuple((d - r) % n for d in range(n)) for r in range(n))
    results = tuple(tuple((r - s) % n for s in range(n)) for r in range(n))
    return Schedule("all_to_all", "bruck", n, n, tuple(steps), inputs, results)


def tree_broadcast(n: int, root: int = 0) -> Schedule:
    """Every rank that has the data sends it on, so their number doubles in each step."""
    _check_root(n, root)
    steps: list[Step] = []
    have = 1
    while have < n:
        pairs = [(r, r + have) for r in range(min(have, n - have))]
        steps.append(tuple(_moves((a + root) % n, (b + root) % n, [0]) for a, b in pairs))
        have *= 2
    return _spreading("tree", n, 1, tuple(steps), root)


def chain_broadcast(n: int, root: int = 0, chunks: int = 8) -> Schedule:
    """Passes chunks from neighbour to neighbour in a pipeline, which keeps all links busy."""
    _check_root(n, root)
    steps = tuple(
        tuple(
            _moves((r + root) % n, (r + 1 + root) % n, [t - r])
            for r in range(n - 1)
            if 0 <= t - r < chunks
        )
        for t in range(chunks + n - 2)
        if n > 1
    )
    return _spreading("chain", n, chunks, steps, root)


def shift_permute(n: int, by: int = 1) -> Schedule:
    """Every rank sends to the rank `by` further on, as in ring attention or a pipeline."""
    order = tuple((r + by) % n for r in range(n))
    step = tuple(_moves(r, to, [0]) for r, to in enumerate(order))
    places = ((0,),) * n
    return Schedule("permute", "shift", n, 1, (step,), places, places, order=order)


ALGORITHMS: dict[tuple[str, str], Callable[..., Schedule]] = {
    ("all_reduce", "ring"): ring_all_reduce,
    ("all_reduce", "double_tree"): double_tree_all_reduce,
    ("all_reduce", "halving_doubling"): halving_doubling_all_reduce,
    ("all_reduce", "one_shot"): one_shot_all_reduce,
    ("all_reduce", "two_shot"): two_shot_all_reduce,
    ("all_reduce", "hierarchical"): hierarchical_all_reduce,
    ("reduce_scatter", "ring"): ring_reduce_scatter,
    ("reduce_scatter", "halving"): halving_reduce_scatter,
    ("reduce_scatter", "direct"): direct_reduce_scatter,
    ("all_gather", "ring"): ring_all_gather,
    ("all_gather", "doubling"): doubling_all_gather,
    ("all_gather", "direct"): direct_all_gather,
    ("all_to_all", "pairwise"): pairwise_all_to_all,
    ("all_to_all", "bruck"): bruck_all_to_all,
    ("all_to_all", "direct"): direct_all_to_all,
    ("broadcast", "tree"): tree_broadcast,
    ("broadcast", "chain"): chain_broadcast,
    ("permute", "shift"): shift_permute,
}


# ---- parts


def _moves(source: int, target: int, slots: Sequence[int], adds: bool = False) -> Transfer:
    """Returns a message from some slots of rank `source` to the same slots of `target`."""
    return Transfer(source, target, tuple(slots), tuple(slots), adds)


def _reducing(
    algorithm: str, n: int, chunks: int, steps: tuple[Step, ...], slots: int = 0
) -> Schedule:
    places = (tuple(range(chunks)),) * n
    return Schedule("all_reduce", algorithm, n, slots or chunks, steps, places, places)


def _scattering(algorithm: str, n: int, steps: tuple[Step, ...]) -> Schedule:
    inputs, results = (tuple(range(n)),) * n, tuple((r,) for r in range(n))
    return Schedule("reduce_scatter", algorithm, n, n, steps, inputs, results)


def _gathering(algorithm: str, n: int, steps: tuple[Step, ...]) -> Schedule:
    inputs, results = tuple((r,) for r in range(n)), (tuple(range(n)),) * n
    return Schedule("all_gather", algorithm, n, n, steps, inputs, results)


def _exchanging(algorithm: str, n: int, steps: tuple[Step, ...]) -> Schedule:
    inputs, results = (tuple(range(n)),) * n, (tuple(range(n, 2 * n)),) * n
    return Schedule("all_to_all", algorithm, n, 2 * n, steps, inputs, results)


def _spreading(algorithm: str, n: int, chunks: int, steps: tuple[Step, ...], root: int) -> Schedule:
    places = (tuple(range(chunks)),) * n
    return Schedule("broadcast", algorithm, n, chunks, steps, places, places, root)


def _tree(begin: int, end: int) -> dict[int, int | None]:
    """Returns the parent of each rank from `begin` to before `end` in an in-order binary tree.

    The root has parent None. The leaves are at even distances from `begin`.
    """
    size = end - begin
    if size <= 0:
        return {}
    left = (1 << (size.bit_length() - 1)) - 1 if size > 1 else 0
    root = begin + left
    found: dict[int, int | None] = {**_tree(begin, root), **_tree(root + 1, end)}
    return {r: root if p is None else p for r, p in found.items()} | {root: None}


def _piped(parents: dict[int, int | None], chunks: Sequence[int]) -> list[Step]:
    """Returns the steps of a pipelined all-reduce on a tree: sums go up, then results down.

    The tree is given by the parent of each rank. Chunk i begins in step i.
    """
    depth = {r: _depth(parents, r) for r in parents}
    deepest = max(depth.values())
    steps: list[list[Transfer]] = [[] for _ in range(len(chunks) + 2 * deepest)]
    for number, chunk in enumerate(chunks):
        for rank, parent in parents.items():
            if parent is not None:
                up, down = deepest - depth[rank], deepest + depth[parent]
                steps[number + up].append(_moves(rank, parent, [chunk], adds=True))
                steps[number + down].append(_moves(parent, rank, [chunk]))
    return [tuple(step) for step in steps if step]


def _depth(parents: dict[int, int | None], rank: int) -> int:
    parent = parents[rank]
    return 0 if parent is None else 1 + _depth(parents, parent)


def _check_power(n: int, algorithm: str) -> None:
    if n & (n - 1):
        raise UsageError(f"{algorithm} needs a power of two of ranks, not {n}")


def _check_root(n: int, root: int) -> None:
    if not 0 <= root < n:
        raise UsageError(f"root {root} is not one of {n} ranks")
