"""Exercise 9: scans."""

from stack.demos.course.answers import Gap


def softmax_state(np, earlier, later):
    """Combine states (m, l) of a running softmax: m the largest score, l the sum of exp(s - m).

    Each of `earlier` and `later` is a tuple of two arrays; so is the result. np: NumPy's names.
    """
    raise Gap("correct both sums to the larger maximum")


def tiled(a, x, tile):
    """h[t] = a[t] h[t-1] + x[t] with h[-1] = 0, by tiles; `tile` divides len(a).

    Within a tile, compute both what the tile gives from zero, and the product of gates up to each
    element; then one multiplication and one addition bring in the state of the tile before. Compute
    all tiles at once, as a GPU does: step i is one NumPy operation on element i of every tile.
    """
    raise Gap("two arrays for each tile, then h = local + product * carried")
