"""Pipelines by the place of their checkpoint: each place has a pipeline of its own."""

from __future__ import annotations

from typing import Any

from airflow_eos.protocol.participant import Owner, Participant


def owner_at(location: str) -> Owner:
    """The pipeline whose checkpoint is there."""
    return Owner.at(f"id-of-{location.replace('/', '.')}", location)  # ids are parts of names


def require_at(
    participant: Participant, location: str, planned: int | None = None, **decided: Any
) -> None:
    """What a start asks of the systems' memory; ``b7``: the decisions of batch 7."""
    asking = owner_at(location)
    decisions = {int(name[1:]): found for name, found in decided.items()}
    for name in participant.ownership(asking):
        name.require(asking, newest_planned=planned, decisions=decisions)
