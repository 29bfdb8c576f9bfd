"""The demo, ``make demo``: a pipeline is killed four times, recovered by Airflow, and audited.

``scenario.py`` has the four kills; ``play.py`` runs them; ``stage.py``, with ``airflow.py`` and
``orders.py``, starts broker and Airflow; ``story.py`` prints the progress.
"""
