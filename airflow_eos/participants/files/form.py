"""How files become visible in a folder: one form for all that write there, created if absent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from airflow_eos.participants.files.place import Place

_FORM = "form"  # no participant can be called so


def require_form(place: Place, form: str) -> None:
    """Take ``form`` for the folder, unless it has one: two that start at once see no data yet.

    Raises:
        ConfigurationError: it has the other one.
        StoreError: the place refuses, or what was written is gone.
    """
    found = place.beside.get(_FORM)
    if found is None:
        place.beside.create(_FORM, form.encode())
        found = place.beside.get(_FORM)
    if found is None:
        raise StoreError(
            f"{place.beside.location}/{_FORM} was written and is gone: who deletes it?"
        )
    if found != form.encode():
        theirs = found.decode("ascii", errors="replace")
        raise ConfigurationError(
            f"{place.address} is written with publish={theirs!r}, and not {form!r}: readers see "
            "the files of one form alone. Give another folder, or the same form."
        )
