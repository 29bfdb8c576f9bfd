"""Words of a checkpoint as paths, patterns and terminal output: they stay words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from airflow_eos.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.cli import app, main
from airflow_eos.commands.options import require_confirmed
from airflow_eos.commands.recovery import _require_silent
from airflow_eos.errors import EosError, PipelineAliveError, Remedy, StoreError
from airflow_eos.kafka.transactions.identity import belongs_to_prefix
from airflow_eos.protocol.decision import Outcome, WorkIdentity
from airflow_eos.protocol.participant import Member, Owner, Ownership
from airflow_eos.recovery import Action, Plan, Step, resolve
from airflow_eos.recovery.tables import plan_view
from airflow_eos.tables import as_text
from tests.support.beats import heartbeat

pytestmark = pytest.mark.unit


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


def test_a_drained_folder_is_shown_as_text_whatever_its_name(tmp_path: Path) -> None:
    """A name may have what means a colour to one library, and a command to a terminal."""
    folder = tmp_path / f"a[/b][red]{chr(27)}[2J"
    write_heartbeat(CheckpointStore.open(folder), heartbeat("stopped"))
    result = CliRunner().invoke(app, ["drain", str(folder), "--wait", "0"])
    assert result.exit_code == 0, result.exception
    assert f"Drained: {tmp_path}/a[/b][red]\\x1b[2J\n" == result.stdout


def test_what_somebody_else_calls_his_checkpoint_is_no_command_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the topic of prefixes may claim one by any name."""
    hostile = f"{tmp_path}/x; rm -rf ~ {chr(27)}[2J"
    monkeypatch.setattr("airflow_eos.recovery.facts.signs_of_life", lambda _: ("it beats",))
    give_up = Remedy(("airflow-eos disown p --yes",))
    claimed = Ownership("prefix 'p'", Owner("id", hostile), (), give_up, give_up, give_up)
    with pytest.raises(PipelineAliveError) as refused:
        _require_silent(claimed, None, moved=False, force=False)
    [remedy] = refused.value.remedies
    assert shlex.split(remedy.commands[0])[:3] == ["airflow-eos", "drain", hostile]


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "nobody"])
def test_a_program_that_has_not_confirmed_is_told_so_in_json(answer: str) -> None:
    asking = typer.Typer()
    asking.command()(lambda: require_confirmed("For good?", as_json=True))
    result = CliRunner().invoke(asking, input=answer)
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[-1]) == {"confirmed": False}


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
