"""The page: pipelines as people see them, in Airflow's own UI or by ``airflow-eos ui``.

- :mod:`.listed`: which pipelines there are and how to reach them, as the page is told
- :mod:`.views`: what a browser gets, as frozen values
- :mod:`.states`, :mod:`.rates`: what the evidence says, pure
- :mod:`.batches`: the newest batches, read from a checkpoint
- :mod:`.look`: one checkpoint as a row of the list, or with its batches
- :mod:`.board`: many of them, looked at side by side and kept for a moment
- :mod:`.planned`: what recovery would do: the one view that asks the systems themselves
- :mod:`.app`: the routes; all of them read. What acts is Airflow's: :mod:`airflow_eos.plugins`
- ``static/``: the page itself, without a build step
"""
