"""``eos_pipeline(...)``: the DAGs of a pipeline from a few arguments, in place of a copied file."""

from airflow_eos.factory.drill import eos_drill
from airflow_eos.factory.pipeline import eos_pipeline
from airflow_eos.factory.settings import Pipeline
from airflow_eos.factory.upgrade import eos_upgrade

__all__ = ["Pipeline", "eos_drill", "eos_pipeline", "eos_upgrade"]
