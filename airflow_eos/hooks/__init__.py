"""Thin hooks on Airflow's own ``kafka`` and ``spark`` connections; no new connection type.

Each room that runs under Airflow imports this one first, as it refuses an Airflow that is too old.
Community providers check that in their package's ``__init__``. Ours is also imported by executors
and by the command line, where there is no Airflow at all. The version comes from the installed
package: importing ``airflow`` would start Airflow, which looks for providers and meets this one
half imported.
"""

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

AIRFLOW_FLOOR = "3.1.0"

try:
    _found = version("apache-airflow-core")  # Airflow 3; "apache-airflow" beside it is a bundle
except PackageNotFoundError:
    _found = version("apache-airflow")

# A release candidate of the floor is accepted, as community providers accept it.
if Version(Version(_found).base_version) < Version(AIRFLOW_FLOOR):
    raise RuntimeError(
        f"airflow-provider-eos needs Apache Airflow {AIRFLOW_FLOOR} or later, found {_found}. "
        "Upgrade Airflow, or uninstall airflow-provider-eos from this environment."
    )
