"""``airflow-eos new``: what it writes is an app and a DAG that can be used as they are."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from airflow_eos.commands.new import Kind, make_project, sample_rows
from airflow_eos.delivery.configured import OutputConfig
from airflow_eos.errors import ConfigurationError
from airflow_eos.supervision.trial import read_project


@pytest.mark.parametrize("kind", Kind)
def test_a_new_project_names_itself_everywhere_and_nothing_of_the_template(tmp_path, kind):
    for file in make_project("orders", kind, tmp_path / "orders"):
        text = file.read_text()
        assert "{" + "name}" not in text
        if file.suffix == ".py":
            ast.parse(text)
        if file.name != "rows.tsv":
            assert "clicks.out" not in text
            assert "orders" in text


@pytest.mark.parametrize("kind", Kind)
def test_its_dags_are_three_and_find_the_app_beside_them(tmp_path, kind):
    make_project("orders", kind, tmp_path / "orders")
    path = tmp_path / "orders" / "dags" / "orders.py"
    module: dict[str, Any] = {"__file__": str(path), "__name__": "orders"}
    exec(compile(path.read_text(), str(path), "exec"), module)
    dags = [module[name] for name in ("orders", "orders_recovery", "orders_watchdog")]
    assert [dag.dag_id for dag in dags] == ["orders", "orders_recovery", "orders_watchdog"]
    run = dags[0].get_task("run")
    assert run.application == str(tmp_path / "orders" / "spark_apps" / "orders.py")
    assert bool(run.outputs) is (kind is Kind.windows)


def test_the_two_outputs_can_be_chosen_and_have_a_prefix_each(tmp_path):
    make_project("orders", Kind.windows, tmp_path / "orders")
    outputs = (tmp_path / "orders" / "outputs.json").read_text()
    assert len(OutputConfig.of("exactly_once", outputs).chosen) == 2
    prefixes = [each.get("transactional_id_prefix") for each in json.loads(outputs)]
    assert prefixes == [None, "orders-busy"]  # None: the app's own


@pytest.mark.parametrize(
    "name", ["", "Orders", "a-b", "1st", "class", "a b", "../x", "é", "x" * 61]
)
def test_a_name_that_is_no_module_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ConfigurationError, match="expected a letter"):
        make_project(name, Kind.map, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_python_keeps_for_itself_is_said_to_be_one(tmp_path):
    with pytest.raises(ConfigurationError, match="'class' is a word of Python's own"):
        make_project("class", Kind.map, tmp_path / "made")


def test_a_folder_that_is_there_is_never_written_into(tmp_path):
    (tmp_path / "orders").mkdir()
    with pytest.raises(ConfigurationError, match="is there already"):
        make_project("orders", Kind.map, tmp_path / "orders")
    assert list((tmp_path / "orders").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/orders cannot be written: .*--into"):
        make_project("orders", Kind.map, tmp_path / "file" / "orders")


def test_what_is_no_project_is_named_by_the_file_that_it_lacks(tmp_path):
    with pytest.raises(ConfigurationError, match=r"has no spark_apps/.*\.py"):
        read_project(tmp_path)


def test_the_sample_rows_differ_and_can_be_read_back(tmp_path):
    make_project("orders", Kind.map, tmp_path / "orders")
    rows = read_project(tmp_path / "orders").rows
    assert rows == tuple(sample_rows())
    assert len({json.loads(value)["id"] for _, value in rows}) == len(rows) == 1000
