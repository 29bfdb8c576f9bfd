"""What a task's page in Airflow leads to: Spark's UI, the pipeline's page, the recovery plan."""
