"""What every pipeline needs, whatever it delivers to: no system, no kind of sink, no Airflow."""
