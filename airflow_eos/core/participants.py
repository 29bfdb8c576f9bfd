"""The kinds of participants, and connections to participants by their kind.

A kind is a folder of ``kinds``, whose module ``participant`` has a function
``connect(member, how, *, store, timeout_s)`` that gives a
:class:`~airflow_eos.core.protocol.participant.Participant`, without Spark. The module is imported
when it is first needed, so that nobody needs the libraries of another kind. A user's package gives
its kinds as entry points of the group ``airflow_eos.core.participants``: the kind's name and its
module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from airflow_eos.core.protocol.participant import Member, Participant
from airflow_eos.core.protocol.participant_group import reach_all
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore

KINDS = (
    *("kafka", "files", "postgres", "mysql", "upsert", "wal", "delta", "iceberg"),
    "consumer_group",
)
"""Our kinds; all else of a kind lies in its folder below ``kinds``."""


def home_of(kind: str) -> str:
    """Return the package of one of our kinds: Kafka is a house of its own."""
    return "airflow_eos.kafka" if kind == "kafka" else f"airflow_eos.kinds.{kind}"


def module_of(kind: str) -> Any:
    """Return the module ``participant`` of one of our kinds."""
    return import_module(f"{home_of(kind)}.participant")


def connect(
    members: Sequence[Member],
    reach: Mapping[str, Any],
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 30.0,
) -> Participant:
    """Connect to the participants that a checkpoint names: to all of them, or to none.

    Args:
        reach: by a participant's name or else its kind, how to connect: what the checkpoint must
            not hold, such as passwords. A kind may need nothing.
        store: the checkpoint, where a kind keeps something there.
        timeout_s: seconds to look for each system.

    Raises:
        ConfigurationError: this release does not know the kind, or nothing says how to reach it.
        EosError: as the kind raises it.
    """
    return reach_all(partial(_connect, member, reach, store, timeout_s) for member in members)


def _connect(
    member: Member, reach: Mapping[str, Any], store: CheckpointStore | None, timeout_s: float
) -> Participant:
    module = module_of(member.kind) if member.kind in KINDS else _of_a_user(member)
    how = reach.get(member.name, reach.get(member.kind))
    participant: Participant = module.connect(member, how, store=store, timeout_s=timeout_s)
    return participant


def _of_a_user(member: Member) -> Any:
    """Import the module of a kind that is not ours (ConfigurationError: no package here has it)."""
    found = {each.name: each for each in entry_points(group="airflow_eos.participants")}
    if member.kind not in found:
        known = ", ".join(sorted({*KINDS, *found}))
        raise ConfigurationError(
            f"{member}: this installation knows {known}. The checkpoint was written where another "
            "release, or a package with that kind, is installed: use that, or install it here."
        )
    return found[member.kind].load()
