"""``eos_pipeline(...)``: the DAGs of a pipeline from a few arguments, in place of a copied file.

- :mod:`.settings`: what they share
- :mod:`.pipeline`, :mod:`.watchdog`, :mod:`.watchdog`: a DAG each
- :mod:`.upgrade`: the DAG that brings a new version in, and back where it fails
- :mod:`.drill`: the DAG that practises, with :mod:`.drilled`, its app
- :mod:`.settings`: settings that are templates
- :mod:`.watchdog`: who replaces a dead driver, and how often
"""

from airflow_eos.factory.drill import eos_drill
from airflow_eos.factory.pipeline import eos_pipeline
from airflow_eos.factory.settings import Pipeline
from airflow_eos.factory.upgrade import eos_upgrade

__all__ = ["Pipeline", "eos_drill", "eos_pipeline", "eos_upgrade"]
