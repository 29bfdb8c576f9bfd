"""The acts of the demo: the app is killed four times, at different places of the protocol."""

from __future__ import annotations

from dataclasses import dataclass

FAILPOINT_PASSES = 3
"""Passes of a failpoint until it kills: the third, so that each life delivers some batches."""


@dataclass(frozen=True, slots=True)
class Act:
    """One kill of the app.

    Attributes:
        failpoint: the place of the SIGKILL; see ``airflow_eos.core.failpoints``.
        title: the state of the batch at that moment.
        expect: what recovery must therefore do.
        until_timeout: whether recovery waits until the broker has aborted the transactions.
    """

    failpoint: str
    title: str
    expect: str
    until_timeout: bool = False


ACTS = (
    Act(
        "prepared",
        "transactions open, nothing decided",
        "No reader was promised these rows: abort, and let the app write the batch again.",
    ),
    Act(
        "decided",
        "decided, not one committed",
        "The decision is durable, so the rows are promised: commit, although the app is dead.",
    ),
    Act(
        "settled-some",
        "decided, some committed",
        "Some readers have some of the rows: commit the others, and nothing twice.",
    ),
    Act(
        "decided",
        "decided, then left alone until the broker gives up",
        "Nobody comes. The broker throws promised rows away, and the app must write them again.",
        until_timeout=True,
    ),
)


def failpoints() -> str:
    """Return the value of ``EOS_FAILPOINTS`` for the app's environment, in all its lives."""
    points = dict.fromkeys(act.failpoint for act in ACTS)
    return ",".join(f"{point}=kill@{FAILPOINT_PASSES}" for point in points)
