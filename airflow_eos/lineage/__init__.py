"""Which rows of which topics became which rows of which others, for OpenLineage.

- :mod:`.datasets`: the pure half, and what is read from the checkpoint
- :mod:`.openlineage`: as the OpenLineage provider asks operators for it
"""
