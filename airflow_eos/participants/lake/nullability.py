"""Whether rows may hold a null where a table holds none, within columns whose types are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Within = Callable[[T], Sequence[tuple[bool, T]]]
"""(whether it may be null, its type) of each part of a type."""


def is_looser(ours: T, theirs: T, within: Within[T]) -> bool:
    """Whether a part of ``ours``, at any depth, may be null, and not in ``theirs``."""
    return any(
        (mine and not other) or is_looser(my_type, other_type, within)
        for (mine, my_type), (other, other_type) in zip(within(ours), within(theirs), strict=True)
    )
