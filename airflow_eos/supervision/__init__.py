"""One running app, watched and recovered; free of Airflow, so that a test can drive it."""
