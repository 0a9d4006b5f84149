"""Solutions of exercise 4."""


def loads(rows, columns, depth, m, n):
    """Return how many numbers all tiles together load."""
    return (rows // m) * (columns // n) * depth * (m + n)


def registers(m, n, lanes):
    """The sums, a row of w, and one number of x."""
    return m * n // lanes + n // lanes + 1


def steps():
    """16 x 16 sums are 16 registers; 16 + 16 numbers are loaded for 256 multiplications."""
    return (
        "split i 16; split j 16; reorder i.1 j.0; vectorize j.1; unroll i.1; compute_with k;"
        " bind i.0 cores"
    )
