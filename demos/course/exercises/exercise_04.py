"""Exercise 4: the arithmetic of tiles, and a list of steps."""

from stack.demos.course.answers import Gap


def loads(rows, columns, depth, m, n):
    """Return how many numbers all tiles load for a product of rows x depth by depth x columns.

    Each tile of m x n results reads its m rows and its n columns once, along the whole depth.
    """
    raise Gap("tiles times what one of them reads")


def registers(m, n, lanes):
    """Return how many vector registers a tile of m x n sums takes, n a multiple of `lanes`.

    A register has `lanes` numbers. Besides the sums, the row of w that they are multiplied with has
    to be there, and one number of x, repeated in all lanes.
    """
    raise Gap("sums, a row of w, and one more")


def steps():
    """The text of a list of steps for `c`, 64 x 64 by 64 x 64, on a CPU with AVX-512.

    The loop along k does at least 8 multiplications for each number that it loads; the 8 x 32
    tile of the lesson does 6.4. The sums that it carries are vectors that fit in 24 of the 32
    registers, of 16 numbers each.
    """
    raise Gap('text such as "split j 32; vectorize j.1; bind i cores"')
