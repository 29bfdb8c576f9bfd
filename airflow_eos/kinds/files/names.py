"""Names of the folders that a participant keeps beside a folder of data."""

KEPT = "_eos"
"""The first part of the path of files that lie beside the data: see :func:`beside`."""


def works_of(name: str) -> str:
    """Return the folder of all prepared work of a participant, relative to the folder of data."""
    return f"{kept_at(name)}/work"


def kept_at(name: str) -> str:
    """Return the folder that a participant keeps beside the data."""
    return f"{KEPT}/{name}"


def beside(folder: str) -> str:
    """Return the name of the folder beside ``folder``, which readers of the parent pass over.

    Spark does so where a name begins with an underscore and has no ``=``.
    """
    return f"{KEPT}.{folder.replace('~', '~0').replace('=', '~1')}"
