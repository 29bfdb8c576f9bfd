"""What an app is told in files: its operator's secrets, and what is long for a command line."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_eos.errors import ConfigurationError


def kafka_config(bootstrap_servers: str | None) -> dict[str, Any]:
    """Librdkafka's configuration of the cluster that is read from.

    Raises:
        ConfigurationError: no cluster is named.
    """
    config = told("EOS_KAFKA_CONFIG_FILE")
    if bootstrap_servers is not None:
        return {**config, "bootstrap.servers": bootstrap_servers}
    if not config:
        raise ConfigurationError(
            "No Kafka cluster is named: give --bootstrap-servers, or let EOS_KAFKA_CONFIG_FILE "
            "name a JSON file with a librdkafka configuration (readable by you only)."
        )
    return config


def outputs_text(told: str | None) -> str | None:
    """JSON text, also where its file is named."""
    if told is None or told.lstrip().startswith(("[", "{")):
        return told
    try:
        return Path(told).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--outputs {told!r} is no JSON list, and no file that can be read: {error}"
        ) from error


def told(variable: str) -> dict[str, Any]:
    """The JSON object in the file that an environment variable names; empty where none does."""
    name = os.environ.get(variable)
    if name is None:
        return {}
    path = Path(name)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{variable} names {path}, which cannot be read as JSON: {error}"
        ) from error
    if not isinstance(told, dict):
        raise ConfigurationError(f"{path} holds no JSON object, which {variable} should name.")
    if _is_read_once(variable):  # written for this start; a file of yours is left alone
        target = path.resolve()
        path.unlink(missing_ok=True)
        with suppress(OSError):  # YARN's own copy, which it may not let us touch
            target.unlink(missing_ok=True)
    return told


def _is_read_once(variable: str) -> bool:
    """``EOS_READ_ONCE`` lists the variables whose files are; ``1`` means all of them."""
    told = os.environ.get("EOS_READ_ONCE", "")
    return told in {"1", "true"} or variable in told.split(",")
