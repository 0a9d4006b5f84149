"""Exercise 12: a detective."""

import numpy as np  # noqa: F401

from stack.demos.course.answers import Gap
from stack.rewrite import Pipeline  # noqa: F401


def first_wrong_rewrite(passes, func, arrays):
    """The number of the first rewrite after which `func` gives another result on `arrays`.

    0 where all of them together are right. Pipeline(passes).run(func, fuel=n).func is the function
    after n rewrites. Results may differ by 1e-4; nan agrees with nan. Do not try every number.
    """
    raise Gap("halve between 0 and the number of all rewrites: records have .rewrites")


def telling_input(one, other):
    """A list with one f32 array for each parameter, on which two functions differ; None if none is
    found. Try numbers that are special: zeros of both signs, infinities, nan, large and small."""
    raise Gap("np.resize fills a shape with the numbers of a list")
