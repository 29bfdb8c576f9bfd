"""The page: pipelines as people see them, in Airflow's own UI or by ``airflow-eos ui``.

- :mod:`.views`: which pipelines there are and how to reach them, as the page is told
- :mod:`.views`: what a browser gets, as frozen values
- :mod:`.pipeline_state`, :mod:`.pipeline_state`: what the evidence says, pure
- :mod:`.pipeline_state`: the newest batches, read from a checkpoint
- :mod:`.pipeline_state`: one checkpoint as a row of the list, or with its batches
- :mod:`.board`: many of them, looked at side by side and kept for a moment
- :mod:`.board`: what recovery would do: the one view that asks the systems themselves
- :mod:`.app`: the routes; all of them read. What acts is Airflow's: :mod:`airflow_eos.plugins`
- ``static/``: the page itself, without a build step
"""
