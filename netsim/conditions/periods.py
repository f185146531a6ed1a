"""What happens again and again: in which of its periods a time is."""

SHORTEST_S = 1e-3
"""No link changes again and again in less time: a real one is not switched so fast, and the times
of one operation over it would not be found.
"""


def period_number(at_s: float, first_s: float, every_s: float) -> int:
    """The k of the last period that has begun: period k begins at first_s + k * every_s.

    Code that compares times with these sums, as floats have them, agrees with it. A quotient is
    rounded in another way, so that it may be one off.
    """
    number = int((at_s - first_s) // every_s)
    if first_s + number * every_s > at_s:
        return number - 1
    if first_s + (number + 1) * every_s <= at_s:
        return number + 1
    return number
