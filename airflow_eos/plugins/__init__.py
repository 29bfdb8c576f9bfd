"""What is shown inside Airflow's own UI; loaded by the API server, and by nothing of the core."""
