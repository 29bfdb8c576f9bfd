"""The page: pipelines as people see them, in Airflow's own UI or by ``airflow-eos ui``.

It only reads; what acts is Airflow's: :mod:`airflow_eos.plugins`. ``static/`` is the page itself,
without a build step.
"""
