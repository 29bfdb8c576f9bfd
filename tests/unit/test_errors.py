"""What an error says to do is data; what is open when one comes is closed."""

from __future__ import annotations

import io
import pickle

import pytest

from airflow_eos.core.closing import closed_on_error
from airflow_eos.errors import EosError, OwnershipError, Remedy

RECOVER = Remedy(commands=("airflow-eos recover /c", "airflow-eos plan /c"), start=True)
GIVE_UP = Remedy(commands=("airflow-eos accept /c --batch 3",), costs="100 rows")


def test_one_remedy_ends_the_message():
    error = OwnershipError("Found that, expected this.", RECOVER)
    assert str(error) == (
        "Found that, expected this. Run `airflow-eos recover /c`, then `airflow-eos plan /c`, "
        "then start the app again."
    )


def test_of_several_a_person_decides_and_is_told_the_cost():
    error = EosError("Found that.", RECOVER, GIVE_UP)
    assert "Decide: (1) Run" in str(error)
    assert "or (2) Run `airflow-eos accept /c --batch 3` (this costs: 100 rows)." in str(error)


def test_settings_and_what_only_a_person_can_do_come_first():
    remedy = Remedy(change="make room in the table", settings={"a": "1"}, start=True)
    assert str(remedy) == "Make room in the table, then set a=1, then start the app again"


def test_an_error_without_remedy_says_its_words_alone():
    assert str(EosError("Found that.")) == "Found that."
    assert EosError("Found that.").remedies == ()


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ("It is not there.", "Read: It is not there. Nothing was started."),
        ("waiting...", "Read: waiting.... Nothing was started."),
        ("cd ..", "Read: cd ... Nothing was started."),
    ],
)
def test_a_sentence_of_another_program_in_ours_ends_with_one_full_stop(theirs, said):
    assert str(EosError(f"Read: {theirs}. Nothing was started.")) == said


def test_remedies_cross_processes_and_are_not_said_twice():
    sent = OwnershipError("Found that.", RECOVER)
    came = pickle.loads(pickle.dumps(sent))
    assert (type(came), str(came), came.remedies) == (OwnershipError, str(sent), (RECOVER,))


# --- A connection that is handed on is open where that succeeds, and closed where it fails --------


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
