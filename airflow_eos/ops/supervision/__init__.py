"""Starting, watching and recovering one app; free of Airflow, so that a test can drive it."""
