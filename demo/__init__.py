"""A pipeline is killed four times, recovered by Airflow, and audited: ``make demo``.

``scenario.py`` says what happens; ``airflow.py`` and ``orders.py`` set the stage; ``story.py``
shows it.
"""
