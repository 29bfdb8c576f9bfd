"""Refuse an Airflow that is too old, in one sentence; imported by what runs under Airflow only.

Community providers do this in their package's ``__init__``. Ours is also imported by executors and
by the command line, where there is no Airflow at all.
"""

from __future__ import annotations

from airflow import __version__ as _found
from packaging.version import Version

AIRFLOW_FLOOR = "3.1.0"

# A release candidate of the floor is good enough, as it is for community providers.
if Version(Version(_found).base_version) < Version(AIRFLOW_FLOOR):
    raise RuntimeError(
        f"airflow-provider-eos needs Apache Airflow {AIRFLOW_FLOOR} or later, found {_found}. "
        "Upgrade Airflow, or uninstall airflow-provider-eos from this environment."
    )
