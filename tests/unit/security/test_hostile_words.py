"""Words of a checkpoint as paths, patterns and terminal output: they stay words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.cli import main
from airflow_eos.errors import EosError, StoreError
from airflow_eos.kafka.transactions.identity import belongs_to_prefix
from airflow_eos.protocol.decision import Outcome, WorkIdentity
from airflow_eos.protocol.participant import Member
from airflow_eos.recovery import Action, Plan, Step, resolve
from airflow_eos.recovery.tables import plan_view
from airflow_eos.tables import as_text


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "eos" / "decisions" / "0").mkdir(parents=True)
    return folder


OUTSIDE = [
    "../x",
    "eos/../../x",
    "/etc/x",
    "eos//x",
    "eos/./x",
    "..",
    "",
    "eos\\..\\x",
    "eos/\0x",
    "a\nb",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("verb", ["get", "head", "put", "create", "delete", "list", "sync"])
def test_no_path_leaves_the_checkpoint(checkpoint: Path, path: str, verb: str) -> None:
    store = CheckpointStore.open(checkpoint)
    before = sorted(checkpoint.parent.rglob("*"))
    verbs: dict[str, Callable[[], object]] = {
        "get": lambda: store.get(path),
        "head": lambda: store.head(path),
        "put": lambda: store.put(path, b"x"),
        "create": lambda: store.create(path, b"x"),
        "delete": lambda: store.delete([path]),
        "list": lambda: store.list(path),
        "sync": lambda: store.make_durable(path),
    }
    with pytest.raises(StoreError, match="not a path inside a checkpoint"):
        verbs[verb]()
    assert sorted(checkpoint.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../../x", "etl/../../x", "/etc/x", "..", "a\nb", "é" * 10])
def test_an_id_from_a_plan_cannot_name_a_ruling_outside(checkpoint: Path, name: str) -> None:
    before = sorted(checkpoint.parent.rglob("*"))
    with pytest.raises(EosError):
        resolve(
            CheckpointStore.open(checkpoint), WorkIdentity("kafka", "sink", name), Outcome.COMMITTED
        )
    assert sorted(checkpoint.parent.rglob("*")) == before


def test_an_error_on_the_command_line_obeys_no_terminal_escape(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(f"v1{ESCAPES}")
    monkeypatch.setattr("sys.argv", ["airflow-eos", "status", f"{checkpoint}/\x1b[2J"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "\x1b" not in capsys.readouterr().err


def test_ids_with_regular_expressions_in_them_own_nothing_else() -> None:
    assert not belongs_to_prefix("etl-0-0", ".*")
    assert not belongs_to_prefix("etlX0-0-0", "etl.0")
    assert not belongs_to_prefix("etl-0-0\n", "etl")
    assert not belongs_to_prefix("etl-²-٣", "etl"), "digits that int() does not read, or reads"


ESCAPES = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m [bold red]rm -rf[/bold red] [link=file:///etc]x[/link]\r\n"
)


def plan_with(text: str) -> Plan:
    return Plan(
        made_at_ms=0,
        location=f"/checkpoint{text}",
        participants=(Member(f"sink{text}", f"kafka{text}", {"cluster_id": text}, text),),
        batch_id=1,
        in_flight=1,
        seal=None,
        steps=(
            Step(
                action=Action.ASK,
                reason=f"because {text}",
                work=WorkIdentity("kafka", "sink", f"etl{text}-0-0-1-1"),
                rows=5,
            ),
        ),
        alive=(f"driver {text}",),
        listed=(),
    )


def test_a_plan_shows_markup_as_text_and_obeys_no_terminal_escape() -> None:
    shown = as_text(plan_view(plan_with(ESCAPES)))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\r" not in shown
    shown = as_text(plan_view(plan_with(ESCAPES)), width=2000)
    places = shown.count("[bold red]rm -rf[/bold red]")
    assert places == 7, "shown, not obeyed: location, participant (3), key, reason, sign of life"
