"""What Airflow's provider manager reads: validated against its own schema in the tests.

No connection type is declared: the package lives on Airflow's own ``kafka`` and ``spark``
connections.
"""

from __future__ import annotations

from typing import Any

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here

_INTEGRATION = "Airflow EOS"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; the entry point ``apache_airflow_provider`` names this."""
    return {
        "package-name": "airflow-provider-eos",
        "name": _INTEGRATION,
        "description": "Exactly-once Spark streaming to Kafka, run and recovered by Airflow.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": [_modules("hooks.kafka", "hooks.spark")],
        "operators": [_modules("operators.streaming", "operators.recovery", "operators.audit")],
        "sensors": [_modules("sensors.progress", "sensors.timeouts")],
        "triggers": [_modules("triggers.progress", "triggers.timeouts")],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": _INTEGRATION,
        "python-modules": [f"airflow_eos.{name}" for name in names],
    }
