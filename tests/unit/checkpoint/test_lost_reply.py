"""Creating an object when the reply is lost, late or a lie: rule 6, an error is no outcome."""

from __future__ import annotations

import errno

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError

from airflow_eos.errors import StoreError

PATH = "eos/decisions/7/1.json"
LOST = GenericError("error sending request: connection reset")


def test_a_reply_lost_after_the_write_took_effect_is_a_win(troubled, backend):
    backend.after = [LOST]
    assert troubled.create(PATH, b"ours") is True
    assert backend.calls["put"] == 1, "read back, not written again"


def test_a_request_lost_before_it_arrived_is_sent_again(troubled, backend):
    backend.before = [LOST]
    assert troubled.create(PATH, b"ours") is True
    assert troubled.get(PATH) == b"ours"


def test_already_exists_after_our_own_write_is_a_win(troubled, backend):
    backend.after = [AlreadyExistsError("an internal retry met our own object")]
    assert troubled.create(PATH, b"ours") is True


def test_already_exists_with_the_bytes_of_another_is_a_loss(troubled, backend):
    backend.instead = [b"theirs"]
    assert troubled.create(PATH, b"ours") is False
    assert troubled.get(PATH) == b"theirs"


def test_a_lost_reply_with_the_bytes_of_another_is_a_loss(troubled, backend):
    backend.before = [LOST]
    backend.real.put(PATH, b"theirs")
    assert troubled.create(PATH, b"ours") is False


def test_already_exists_where_nothing_stands_is_asked_again(troubled, backend):
    # S3 answers 409 while two conditional puts race, and both may then be refused.
    backend.before = [AlreadyExistsError("409 ConditionalRequestConflict")]
    assert troubled.create(PATH, b"ours") is True


def test_a_read_back_that_fails_too_is_asked_again(troubled, backend):
    backend.after = [LOST]
    backend.reading = [GenericError("still no network")]
    assert troubled.create(PATH, b"ours") is True
    assert backend.calls["put"] == 2


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "Make room"), (errno.EROFS, "Mount the disk")]
)
def test_a_full_or_read_only_disk_is_said_and_no_credentials_are_asked_for(
    troubled, backend, number, said
):
    for ask in (troubled.create, troubled.put):
        backend.before = [OSError(number, "the disk refuses")] * 4
        with pytest.raises(StoreError, match=said) as refused:
            ask(PATH, b"ours")
        assert "credentials" not in str(refused.value)
    backend.before = []
    assert troubled.get(PATH) is None


def test_a_store_that_stays_away_is_unknown_never_lost(troubled, backend):
    backend.before = [LOST] * 99
    with pytest.raises(StoreError, match="not known whether it was written"):
        troubled.create(PATH, b"ours")
    assert backend.calls["put"] == 4


def test_a_refusal_is_not_repeated(troubled, backend):
    backend.before = [PermissionDeniedError("403")] * 99
    with pytest.raises(StoreError, match="PermissionDeniedError: 403"):
        troubled.create(PATH, b"ours")
    assert backend.calls["put"] == 1


def test_operating_system_errors_are_no_outcome_either(troubled, backend):
    backend.after = [TimeoutError("timed out")]
    assert troubled.create(PATH, b"ours") is True
