"""What looks at a pipeline from outside, without Airflow."""
