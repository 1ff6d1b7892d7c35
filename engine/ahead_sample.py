"""A sample of those that wait: however many they are, what they cost is soon known."""

from collections.abc import Collection, Iterator
from itertools import islice
from math import ceil

from loraplex.engine.request import Request

Ahead = tuple[Request, float]
"""A waiting request, and how many it stands for, itself included."""

MOST = 32
"""Requests of one kind, or tenants, that are looked at."""


def sampled(requests: Collection[Request], at_most: int = MOST) -> Iterator[Ahead]:
    """Some of these, evenly apart, each for as many; all of them if they are few."""
    every, stands_for = stride(len(requests), at_most)
    return ((request, stands_for) for request in islice(requests, 0, None, every))


def stride(count: int, at_most: int = MOST) -> tuple[int, float]:
    """Every which of so many is looked at, and how many it stands for."""
    every = max(1, ceil(count / at_most))
    return every, count / max(1, ceil(count / every))
