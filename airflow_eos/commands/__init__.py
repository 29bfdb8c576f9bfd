"""The commands of ``airflow-eos``, one module a group."""
