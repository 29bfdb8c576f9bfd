"""Act on several things one after the other: one that refuses costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from airflow_eos.protocol.work import WorkIdentity

Answer = TypeVar("Answer")


def in_turn(acts: Iterable[Callable[[], object]]) -> None:
    """Do each, although one before it has failed.

    Raises:
        Exception: the first that one of them raised, with what the others raised as its notes.
    """
    failed: list[Exception] = []
    for act in acts:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised below, once the others had their turn
            failed.append(error)
    if failed:
        for other in failed[1:]:
            failed[0].add_note(f"And then {type(other).__name__}: {other}")
        raise failed[0]


def answers_in_turn(
    acts: Iterable[Callable[[], Mapping[WorkIdentity, Answer]]],
) -> dict[WorkIdentity, Answer]:
    """The same; all that they answer together."""
    answers: dict[WorkIdentity, Answer] = {}

    def keep(act: Callable[[], Mapping[WorkIdentity, Answer]]) -> Callable[[], None]:
        return lambda: answers.update(act())

    in_turn(map(keep, acts))
    return answers
