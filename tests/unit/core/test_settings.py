"""A setting stands once: every other place where it can be given is made of its field."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer.main import get_command

from airflow_eos.cli.app import app as cli
from airflow_eos.core.arguments import PositiveSpan, arguments_of, spelled
from airflow_eos.core.settings import (
    READ_ONCE,
    SECRET_FILES,
    SETTINGS,
    AppSettings,
    Setting,
    environment,
    flags,
    table,
)
from airflow_eos.errors import ConfigurationError
from airflow_eos.factory import Pipeline, pipeline
from airflow_eos.hooks.arguments import own_arguments
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.operators.arguments import StreamingArguments
from airflow_eos.sinks.app import argument_parser

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "airflow_eos"
TOLD = ("--checkpoint", "/c")


def names(setting: Setting) -> tuple[str, str, str]:
    return setting.flag, setting.variable, setting.short


def test_the_other_names_of_a_setting_follow_from_its_own():
    assert names(SETTINGS["batch_within"]) == (
        "--batch-within",
        "EOS_BATCH_WITHIN_MS",
        "batch_within",
    )
    assert names(SETTINGS["transactional_id_prefix"]) == (
        "--prefix",
        "EOS_TRANSACTIONAL_ID_PREFIX",
        "prefix",
    )
    assert names(SETTINGS["num_retained"])[1] == "EOS_NUM_RETAINED"


@dataclass(frozen=True, kw_only=True)
class MoreSettings(AppSettings):
    """With a new one, which stands nowhere else."""

    nap_time: Annotated[PositiveSpan | None, "how long to nap"] = None
    nap_place: Annotated[str, "where to nap"] = "sofa"


@pytest.fixture
def _more(monkeypatch):
    for name, setting in table(MoreSettings).items():
        monkeypatch.setitem(SETTINGS, name, setting)


@pytest.mark.usefixtures("_more")
def test_a_new_setting_is_a_field_of_the_struct_and_nothing_else(monkeypatch):
    def settings(*arguments: str) -> Any:
        parsed = argument_parser("", prefix="p").parse_args([*TOLD, *arguments])
        return MoreSettings.of_arguments(parsed)

    assert (settings().nap_time, settings().nap_place) == (None, "sofa")
    assert settings("--nap-time", "1 hour").nap_time == timedelta(hours=1)
    assert "where to nap (default: sofa)" in argument_parser("", prefix="p").format_help()
    for variable, value in environment(nap_time=timedelta(minutes=1), nap_place="bed").items():
        monkeypatch.setenv(variable, value)
    assert (settings().nap_time, settings().nap_place) == (timedelta(minutes=1), "bed")
    told = flags(nap_time="2 minutes", nap_place=None)
    assert settings(*told).nap_time == timedelta(minutes=2)


@pytest.mark.usefixtures("_more")
def test_what_a_dag_and_its_operator_both_take_goes_from_one_to_the_other(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Napping(Pipeline):
        nap_place: str = "bed"

    takes = {**own_arguments(SparkStreamingOperator), "nap_place": arguments_of(Napping)["dag_id"]}
    monkeypatch.setattr(pipeline, "own_arguments", lambda _: takes)
    monkeypatch.setattr(pipeline, "Pipeline", Napping)
    made = Napping(
        dag_id="d",
        application="a.py",
        checkpoint="/c",
        prefix="p",
        input_topic="i",
        output_topic="o",
    )
    given = pipeline.app_arguments(made)
    assert given["nap_place"] == "bed"
    assert (given["checkpoint_location"], given["transactional_id_prefix"]) == ("/c", "p")


def strings(path: Path) -> Iterator[str]:
    """The texts of a source that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    loose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.value


def test_no_other_file_spells_a_flag_or_a_variable_of_an_app():
    """Those of the command line ``airflow-eos`` are its own."""
    flags_ = {each.flag for each in SETTINGS.values()}
    variables = {*(each.variable for each in SETTINGS.values()), *SECRET_FILES.values(), READ_ONCE}
    spelling = {
        (path.relative_to(PACKAGE).as_posix(), text)
        for path in PACKAGE.rglob("*.py")
        for text in strings(path)
        if set(re.findall(r"EOS_[A-Z_]+", text)) & variables
        or (text in flags_ and path.parent.name != "cli")
    }
    assert {file for file, _ in spelling} == {"core/settings.py"}


def test_every_default_and_type_of_a_setting_is_that_of_its_field():
    """Of the operator, of ``Pipeline`` and of ``doctor``; a trigger is a word in two of them."""
    defaults = {each.name: each.default for each in fields(AppSettings)}
    given = unwrap(StreamingArguments.__init__).__kwdefaults__ or {}
    shared = own_arguments(SparkStreamingOperator).keys() & SETTINGS.keys()
    assert len(shared) > 8
    for name in shared - {"checkpoint_location", "transactional_id_prefix"}:
        assert given[name] == defaults[name], name
    of_pipeline = {each.name: each for each in dataclasses.fields(Pipeline)}
    both = [each for each in SETTINGS.values() if each.short in of_pipeline]
    assert len(both) > 8
    for each in both:
        assert of_pipeline[each.short].default == defaults[each.name], each
    for name in shared - {"trigger_interval", "outputs"}:
        assert own_arguments(SparkStreamingOperator)[name].type == SETTINGS[name].argument.type
    assert arguments_of(Pipeline)["trigger"].type == SETTINGS["trigger_interval"].argument.type
    doctor = {each.name: each for each in get_command(cli).commands["doctor"].params}  # type: ignore[attr-defined]
    for name in ("trigger_interval", "batch_within", "recover_within", "transaction_timeout"):
        assert doctor[name].default == defaults[name]
        assert SETTINGS[name].text in doctor[name].help


@pytest.mark.parametrize(
    ("flag", "told", "says"),
    [
        ("--trigger=sometimes", {}, "--trigger='sometimes': expected a duration"),
        ("--guarantee=exactly", {}, "did you mean 'exactly_once'?"),
        ("--num-retained=few", {}, "--num-retained='few': expected an integer from 0"),
        ("--max-offsets-per-trigger=0", {}, "--max-offsets-per-trigger='0': expected an integer"),
        (None, {"EOS_BATCH_WITHIN_MS": "soon"}, "EOS_BATCH_WITHIN_MS='soon milliseconds': expec"),
        (None, {"EOS_GUARANTEE": "exact"}, "EOS_GUARANTEE='exact': expected one of"),
        ("--guarantee=exactly_once", {"EOS_GUARANTEE": "exact"}, None),
        (None, {"EOS_GUARANTEE": ""}, None),
    ],
)
def test_what_a_setting_cannot_be_is_refused_by_the_name_that_said_it(
    flag, told, says, monkeypatch
):
    for variable, value in told.items():
        monkeypatch.setenv(variable, value)
    args = argument_parser("", prefix="p").parse_args([*TOLD, *([flag] if flag else [])])
    if says is None:
        assert AppSettings.of_arguments(args).guarantee == "exactly_once"
        return
    with pytest.raises(ConfigurationError) as refused:
        AppSettings.of_arguments(args)
    assert says in str(refused.value)


def test_what_is_not_there_is_not_told():
    """Else the app would take 0 or False, or the text None, for what somebody wants."""
    assert environment(consumer_group=None, standby=False, num_retained=3) == {
        "EOS_NUM_RETAINED": "3"
    }
    assert environment(trigger_interval=timedelta(0), standby=True) == {
        "EOS_TRIGGER_INTERVAL_MS": "0",
        "EOS_STANDBY": "true",
    }
    assert flags(outputs=None, trigger_interval="1 second") == ["--trigger", "1 second"]


def test_the_page_of_settings_shows_the_table():
    section = (ROOT / "docs" / "reference" / "app.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)` \| `(\S+)` \| `(\w+)` \| (.+?) \| (.+) \|$", section, re.M)
    assert shown == [
        (each.name, each.flag, each.variable, shown_default(each), each.text)
        for each in SETTINGS.values()
    ]
    assert all(f"`{each}`" in section for each in (*SECRET_FILES.values(), READ_ONCE))


def shown_default(setting: Setting) -> str:
    [field] = (each for each in fields(AppSettings) if each.name == setting.name)
    if field.default is MISSING:
        return "the app's" if setting.short == "prefix" else "required"
    if field.default is None or field.default is False:
        return "none"
    said = spelled(field.default) if isinstance(field.default, timedelta) else field.default
    return f"`{said}`"
