"""The page inside Airflow's own UI; loaded by the API server, and never by the core."""
