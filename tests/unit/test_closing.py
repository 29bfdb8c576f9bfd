"""A connection that is handed on is open where that succeeds, and closed where it fails."""

from __future__ import annotations

import io

import pytest

from airflow_eos.closing import closed_on_error


def test_what_is_handed_on_stays_open():
    with closed_on_error(io.BytesIO(b"x")) as opened:
        assert opened.read() == b"x"
    assert not opened.closed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_cannot_be_handed_on_is_closed_whatever_came_between(error):
    opened = io.BytesIO()
    with pytest.raises(error), closed_on_error(opened):
        raise error
    assert opened.closed
