"""A private folder for one run of an app: the Kafka configuration and the shipped package."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_eos.operators.preflight import TimeoutBudget

PACKAGE = "airflow_eos.zip"
_KAFKA_CONFIG = "kafka.json"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Give a new folder that only this user may enter, and remove it with all that is in it.

    Only where this process is ended by SIGKILL does it stay behind, under the system's temporary
    folder as ``airflow-eos-*``.
    """
    with tempfile.TemporaryDirectory(prefix="airflow-eos-") as folder:
        yield Path(folder)


def write_kafka_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write the configuration, secrets included, readable by this user only (0600)."""
    path = folder / _KAFKA_CONFIG
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dict(config), file)
    return path


def app_environment(
    folder: Path, checkpoint_location: str, prefix: str | None, budget: TimeoutBudget
) -> dict[str, str]:
    """Return the variables by which the app finds its settings; no secret among them."""
    times = {
        "EOS_TRIGGER_INTERVAL_MS": budget.trigger_interval,
        "EOS_BATCH_WITHIN_MS": budget.batch_within,
        "EOS_RECOVER_WITHIN_MS": budget.recover_within,
        "EOS_TRANSACTION_TIMEOUT_MS": budget.transaction_timeout,
    }
    found = {
        "EOS_KAFKA_CONFIG_FILE": str(folder / _KAFKA_CONFIG),
        "EOS_CHECKPOINT_LOCATION": checkpoint_location,
        **{name: str(round(time.total_seconds() * 1000)) for name, time in times.items()},
    }
    return found if prefix is None else found | {"EOS_TRANSACTIONAL_ID_PREFIX": prefix}
