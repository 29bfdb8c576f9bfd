"""In the folder of a pipeline a command needs no argument; what is said goes before the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from airflow_eos.cli.app import app
from airflow_eos.cli.new import Kind, make_project
from airflow_eos.cli.options import kafka_settings
from airflow_eos.cli.project import FILE
from airflow_eos.errors import ConfigurationError

CLI: Any = get_command(app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a pipeline with two outputs, and somebody is in it."""
    made = tmp_path / "clicks"
    make_project("clicks", Kind.windows, made)
    monkeypatch.chdir(made)
    return made


def parsed(*line: str, config: Path | None = None) -> dict[str, Any]:
    """What a command is called with, of what was said."""
    name, *rest = line
    root = CLI.make_context("airflow-eos", [*(["--config", str(config)] if config else []), name])
    told: dict[str, Any] = CLI.commands[name].make_context(name, rest, parent=root).params
    return {each: list(said) if isinstance(said, tuple) else said for each, said in told.items()}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("status", {"checkpoint": "checkpoints/clicks", "bootstrap_servers": "localhost:9092"}),
        ("plan", {"checkpoint": "checkpoints/clicks", "prefix": "clicks"}),
        ("drain", {"checkpoint": "checkpoints/clicks"}),
        ("ui", {"checkpoints": ["checkpoints/clicks"]}),
        ("blocked", {"topics": ["clicks.out", "clicks.busy"]}),
        (
            "doctor",
            {
                "input_topic": ["clicks"],
                "topic": ["clicks.out", "clicks.busy"],
                "prefix": "clicks",
            },
        ),
    ],
)
def test_in_the_folder_that_new_has_made_a_command_needs_no_argument(command, told):
    assert told.items() <= parsed(command).items()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "line", [("plan", "/other"), ("recover", "--plan", "plan.json"), ("ui", "/one", "/other")]
)
def test_a_command_that_is_told_its_pipeline_takes_nothing_of_the_folders(line):
    """Else it would look for the other one's transactions under this one's prefix."""
    told = parsed(*line)
    assert told["bootstrap_servers"] is None
    assert told.get("prefix") is None
    assert told.get("checkpoint") in {None, "/other"}


@pytest.mark.parametrize("command", ["plan", "recover", "status", "doctor", "accept", "ui"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_command_that_is_told_the_files_own_checkpoint_takes_the_rest_of_the_file(
    command, whole, folder
):
    """As ``plan`` prints what to do: ``airflow-eos recover CHECKPOINT``, with its whole path."""
    own = "checkpoints/clicks"
    told = parsed(command, str(folder / own) if whole else own)
    assert told["bootstrap_servers"] == "localhost:9092"
    assert told.get("prefix", "clicks") == "clicks"


@pytest.mark.usefixtures("folder")
def test_of_two_topics_one_of_another_pipeline_takes_nothing_of_the_folders():
    assert parsed("blocked", "clicks.out", "clicks.busy")["bootstrap_servers"] is not None
    assert parsed("blocked", "clicks.out", "other")["bootstrap_servers"] is None


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("said", [[], ["/other"], ["/other", "--more"]])
def test_what_stands_behind_two_dashes_is_the_apps_and_no_checkpoint(said):
    told = parsed("rehearse", *said[:1], "--app", "a.py", "--", *said[1:], "-b", "k:9092")
    assert told["checkpoint"] == (said[0] if said else "checkpoints/clicks")
    assert told["arguments"] == [*said[1:], "-b", "k:9092"]


def test_outside_a_pipelines_folder_the_apps_arguments_are_no_checkpoint_either(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"[Mm]issing"):
        parsed("rehearse", "--app", "a.py", "--", "-b", "k:9092")


@pytest.mark.usefixtures("folder")
def test_what_is_said_on_the_line_wins_and_what_takes_rows_away_is_always_said():
    assert parsed("plan", "--prefix", "other")["prefix"] == "other"
    with pytest.raises(Exception, match=r"[Mm]issing"):
        parsed("disown")
    with pytest.raises(Exception, match=r"[Mm]issing"):  # which of two?
        parsed("audit")


def test_a_path_is_seen_from_the_folder_of_the_file(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parsed("status", config=folder / FILE)["checkpoint"] == f"{folder}/checkpoints/clicks"
    (folder / FILE).write_text('checkpoint_location = "s3a://lake/c"\nbatch_within = "1 minute"\n')
    assert parsed("status", config=folder / FILE)["checkpoint"] == "s3a://lake/c"


def test_files_of_an_editor_on_windows_are_read_as_they_are_meant(folder):
    """It begins a file with a mark, and ends a line with two characters."""
    (folder / FILE).write_bytes(b'\xef\xbb\xbfcheckpoint_location = "c"\r\ninput_topic = "in"\r\n')
    assert parsed("status")["checkpoint"] == "c"
    (folder / "kafka").write_bytes(b"\xef\xbb\xbfbootstrap.servers=h:1\r\nclient.id=x\r\n")
    settings = kafka_settings(None, folder / "kafka")
    assert (settings.bootstrap_servers, settings.get("client.id")) == ("h:1", "x")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("checkpoint = ", "airflow-eos.toml is no TOML"),
        (f"checkpoint = {'[' * 5000}", "airflow-eos.toml is no TOML"),
        ('chekpoint_location = "c"', "Did you mean 'checkpoint_location'?"),
        ('transaction_timeout = "soon"', "airflow-eos.toml: transaction_timeout='soon': expected"),
        ("output_topic = 5.5", "airflow-eos.toml: output_topic=5.5: expected a text"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name_and_value(text, says):
    Path(FILE).write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        parsed("status")
    assert says in str(refused.value)
