"""What a doctor is asked, and how one question keeps no other from being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import EosError
from airflow_eos.supervision import doctor
from airflow_eos.supervision.doctor import Line

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.sinks.port import Guarantee


@dataclass(frozen=True, slots=True)
class Asked:
    """What the doctor is to look at; times as :class:`~airflow_eos.sinks.KafkaSink` names them.

    ``topics`` are written, ``inputs`` read. ``group`` shows how far it is, None where none does.
    ``guarantee`` None: exactly_once, where the checkpoint has decisions. ``rounds`` of the store's
    race; ``settings`` of the cluster, None where there is no Kafka.
    """

    checkpoint: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    settings: KafkaSettings | None = None
    reach: Mapping[str, Any] | None = field(default=None, repr=False)
    topics: Sequence[str] = ()
    inputs: Sequence[str] = ()
    group: str | None = None
    prefix: str | None = None
    guarantee: Guarantee | None = None
    transaction_timeout: timedelta = timedelta(minutes=15)
    trigger_interval: timedelta = timedelta(seconds=1)
    batch_within: timedelta = timedelta(minutes=1)
    recover_within: timedelta = timedelta(minutes=5)
    rounds: int = 40
    timeout_s: float = 30.0


def tried(what: str, probe: Callable[[], Line]) -> list[Line]:
    """One line; an error that we raise on purpose is one as well."""
    try:
        return [probe()]
    except EosError as error:
        return [doctor.failed(what, error)]
