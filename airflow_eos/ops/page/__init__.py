"""The web page that shows pipelines, inside Airflow's own UI or by ``airflow-eos ui``.

This package only reads; the buttons are in :mod:`airflow_eos.plugins`. ``static/`` has the HTML,
the scripts and the style, without a build step.
"""
