"""The commands of ``airflow-eos``, one module for each group of commands."""
