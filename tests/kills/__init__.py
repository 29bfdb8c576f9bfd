"""Kill every part of Airflow and of Spark, one at a time, and write down what became of it."""
