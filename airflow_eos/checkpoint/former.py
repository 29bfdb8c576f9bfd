"""Objects of former format versions as those of the next. In version 1 all work was Kafka's.

What is written here is written for ever: a checkpoint of any release is planned, recovered and
resumed by the newest one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from airflow_eos.protocol.codec import Fields, added, replaced
from airflow_eos.protocol.work import DEFAULT_PARTICIPANT, Int64

Int16 = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Identity1(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16


class _Range1(msgspec.Struct, frozen=True):
    topic: str
    partition: Int32
    first: Int64
    last: Int64


class _Transaction1(_Identity1, frozen=True):
    written: Annotated[tuple[_Range1, ...], msgspec.Meta(min_length=1)]
    rows: Int64
    fingerprint: str
    opened_at_ms: Int64
    timeout_ms: Int32


class _Pipeline1(msgspec.Struct, frozen=True):
    transactional_id_prefix: str
    cluster_id: str
    sink: str


def decision(fields: Fields) -> Fields:
    """A decision, whose transactions are work now."""
    found = msgspec.convert(fields.get("transactions"), tuple[_Transaction1, ...])
    works = [
        {
            "kind": "kafka",
            "participant": DEFAULT_PARTICIPANT,
            "key": _key(each),
            "rows": each.rows,
            "fingerprint": each.fingerprint,
            "opened_at_ms": each.opened_at_ms,
            "timeout_ms": each.timeout_ms,
            "detail": {"written": [msgspec.to_builtins(place) for place in each.written]},
        }
        for each in found
    ]
    return replaced(fields, {"transactions": None}, {"works": works, "term": None, "offsets": None})


def ruling(fields: Fields) -> Fields:
    """A ruling about one transaction."""
    identity = msgspec.convert(fields.get("transaction"), _Identity1)
    work = {"kind": "kafka", "participant": DEFAULT_PARTICIPANT, "key": _key(identity)}
    return replaced(fields, {"transaction": None}, {"work": work})


def acceptance(fields: Fields) -> Fields:
    """An acceptance; what could still be committed was none of its business."""
    return added(fields, given_up=[])


def acceptance_undivided(fields: Fields) -> Fields:
    """An acceptance of format version 2, which counted the rows of all participants together."""
    return added(fields, missing=None)


ACCEPTANCE = {1: acceptance, 2: acceptance_undivided}


def pipeline(fields: Fields) -> Fields:
    """A pipeline, whose sink is its only participant."""
    found = msgspec.convert(fields, _Pipeline1)
    member = {
        "name": DEFAULT_PARTICIPANT,
        "kind": "kafka",
        "address": {
            "cluster_id": found.cluster_id,
            "transactional_id_prefix": found.transactional_id_prefix,
        },
        "target": found.sink,
    }
    former = dict.fromkeys(_Pipeline1.__struct_fields__)
    return replaced(fields, former, {"id": "", "participants": [member]})


def heartbeat(fields: Fields) -> Fields:
    """A heartbeat; there were no terms."""
    return added(fields, term=None)


def heartbeat_without_starter(fields: Fields) -> Fields:
    """A heartbeat of format version 2; it did not say who started the driver, or why it ended."""
    later = {"started_by": None, "master": "", "deploy_mode": "", "end": None, "reason": None}
    return added(fields, **later)


def heartbeat_without_requester(fields: Fields) -> Fields:
    """A heartbeat of format version 3; who asked it to drain stood before the reason alone."""
    reason = fields.get("reason")
    if fields.get("end") != "drained" or not isinstance(reason, str):
        return added(fields, drained_by=None)
    return added(fields, drained_by=reason.partition(": ")[0])


def heartbeat_without_namespace(fields: Fields) -> Fields:
    """A heartbeat of format version 4; where on Kubernetes its pod was had to be guessed."""
    return added(fields, namespace="")


def heartbeat_without_answer(fields: Fields) -> Fields:
    """A heartbeat of format version 5; whether a restart heals what it failed with is not known."""
    return added(fields, restart_heals=None)


def drain_request(fields: Fields) -> Fields:
    """A request of format version 1, which meant whoever ran then."""
    return added(fields, term=None, submission=None)


def _key(identity: _Identity1) -> str:
    """As :func:`airflow_eos.kafka.transactions.work.key_of` says it."""
    return f"{identity.transactional_id}-{identity.producer_id}-{identity.producer_epoch}"
