"""The systems that can be decided on, by kind: one line each.

A kind is a module with a function ``connect(member, reach, *, timeout_s)`` that gives a
:class:`~airflow_eos.protocol.participant.Participant`, without Spark. It is imported when it is
first needed, so that nobody needs the libraries of another kind.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.protocol.participant import Member, Participant

KINDS = {
    "kafka": "airflow_eos.kafka.transactions.participant",
    "files": "airflow_eos.participants.files.participant",
}


def connect(member: Member, reach: Mapping[str, Any], *, timeout_s: float = 30.0) -> Participant:
    """Reach a participant that a checkpoint names.

    Args:
        member: as ``eos/pipeline.json`` has it.
        reach: by kind, how to get there: what the checkpoint must not hold, such as passwords. A
            kind may need none.
        timeout_s: seconds to look for the system.

    Raises:
        ConfigurationError: this release does not know the kind, or nothing says how to reach it.
        EosError: as the kind raises it.
    """
    if member.kind not in KINDS:
        raise ConfigurationError(
            f"{member}: this release knows {', '.join(sorted(KINDS))}. The checkpoint was written "
            "by another one; use that."
        )
    module = import_module(KINDS[member.kind])
    participant: Participant = module.connect(member, reach.get(member.kind), timeout_s=timeout_s)
    return participant
