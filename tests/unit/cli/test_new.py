"""``airflow-eos new`` and ``package``: what they write can be used as it is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_eos.cli.new import Kind, make_project, sample_rows
from airflow_eos.cli.trial import read_project
from airflow_eos.core.delivery.configured import OutputConfig
from airflow_eos.errors import ConfigurationError
from airflow_eos.ops.packaging import build_archive


@pytest.mark.parametrize("kind", Kind)
def test_a_new_project_names_itself_everywhere_and_nothing_of_the_template(tmp_path, kind):
    for file in make_project("orders", kind, tmp_path / "orders"):
        text = file.read_text()
        assert "{" + "name}" not in text
        if file.suffix == ".py":
            ast.parse(text)
        if file.name != "rows.tsv":
            assert "my_pipeline" not in text
            assert "orders" in text


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "name", ["page", "start", "clicks", "count", "value", "user", "at", "lake", "query"]
)
def test_a_name_that_is_a_field_of_the_rows_changes_no_field(tmp_path, kind, name):
    """``new page --kind windows`` wrote a value with two fields ``page``."""
    computes = [
        [
            ast.dump(function)
            for function in ast.parse((folder / f"spark_apps/{called}.py").read_text()).body
            if isinstance(function, ast.FunctionDef) and function.name != "main"
        ]
        for called in (name, "another")
        for folder in [tmp_path / called]
        if make_project(called, kind, folder)
    ]
    assert computes[0] == computes[1] != []
    if kind is Kind.windows:
        chosen = json.loads((tmp_path / name / "outputs.json").read_text())
        assert "'$.clicks'" in chosen[1]["rows"]
    if kind is Kind.lake:
        (chosen,) = json.loads((tmp_path / name / "outputs.json").read_text())
        assert chosen["create"] == {
            "columns": "id STRING, user STRING, page STRING, at TIMESTAMP, day DATE",
            "partition_by": ["day"],
        }
        assert chosen["table_uri"] == f"s3://lake/{name}"


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
    assert bool(run.outputs) is (kind in {Kind.windows, Kind.lake})
    classes = tmp_path / "orders" / "checkpoints" / "driver.jsa"
    assert f"archive={classes}" in run.conf["spark.driver.extraJavaOptions"]


def test_the_two_outputs_can_be_chosen_and_have_a_prefix_each(tmp_path):
    make_project("orders", Kind.windows, tmp_path / "orders")
    outputs = (tmp_path / "orders" / "outputs.json").read_text()
    assert len(OutputConfig.of("exactly_once", outputs).chosen) == 2
    prefixes = [each.get("transactional_id_prefix") for each in json.loads(outputs)]
    assert prefixes == [None, "orders-busy"]  # None: the app's own


def test_the_readme_of_a_table_tells_of_no_topic_that_is_not_there(tmp_path):
    """Its text is the others', with what differs in its place: each of them is to be found."""
    make_project("orders", Kind.lake, tmp_path / "orders")
    readme = (tmp_path / "orders" / "README.md").read_text()
    assert "orders.out" not in readme
    assert "orders.out" not in (tmp_path / "orders" / "airflow-eos.toml").read_text()
    for said in ("cli,delta]'", "moto_server", "/lake\n", "--outputs", "python query.py", "`AWS_`"):
        assert said in readme, said


def test_the_query_of_a_lake_reads_the_table_that_the_outputs_name(tmp_path):
    """As a person runs it, on a table as the app makes it; here on a disk."""
    make_project("order", Kind.lake, tmp_path / "order")
    table = tmp_path / "table"
    outputs = tmp_path / "order" / "outputs.json"
    outputs.write_text(outputs.read_text().replace("s3://lake/order", str(table)))
    days = [date(2026, 1, 1)] * 2 + [date(2026, 1, 2)]
    rows = pa.table({"id": ["a", "b", "c"], "user": ["u", "v", "u"], "day": days})
    write_deltalake(str(table), rows, partition_by=["day"])
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "order" / "query.py")], capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == [
        "day\tclicks\tusers\tids",
        "2026-01-01\t2\t2\t2",
        "2026-01-02\t1\t1\t1",
    ], ran.stderr


@pytest.mark.parametrize("name", ["", "Orders", "a-b", "1st", "a b", "../x", "é", "x" * 61])
def test_a_name_that_is_no_module_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ConfigurationError, match="expected a letter"):
        make_project(name, Kind.map, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("a-b", "a_b"),
        ("My Clicks", "my_clicks"),
        ("../x", "x"),
        ("1st", "clicks_eu"),
        ("", "clicks_eu"),
        ("Übersicht-Größe", "ubersicht_groe"),
        ("Ünï", "uni"),
    ],
)
def test_a_name_that_is_refused_is_told_with_one_that_fits(tmp_path, name, fits):
    with pytest.raises(ConfigurationError, match=f"Python module: {fits}"):
        make_project(name, Kind.map, tmp_path / "made")
    make_project(fits, Kind.map, tmp_path / "made")


def test_a_name_that_python_keeps_for_itself_is_said_to_be_one(tmp_path):
    with pytest.raises(ConfigurationError, match="'class' is a word of Python's own"):
        make_project("class", Kind.map, tmp_path / "made")


@pytest.mark.parametrize("name", ["email", "time", "pyspark", "kafka", "google"])
def test_a_name_by_which_python_or_spark_would_import_the_app_is_refused(tmp_path, name):
    """The folder of the program comes first: ``import email`` within Python would be the app."""
    with pytest.raises(ConfigurationError, match="Python module that is installed here"):
        make_project(name, Kind.map, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_that_name_is_no_module(tmp_path, monkeypatch):
    (tmp_path / "orders").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    make_project("orders", Kind.map, tmp_path / "made")


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


# --- The archive for Spark: the same bytes every time, and enough to work alone -------------------


def test_the_same_sources_give_the_same_bytes(tmp_path):
    one, two = build_archive(tmp_path / "a.zip"), build_archive(tmp_path / "b.zip")

    assert one.read_bytes() == two.read_bytes()


def test_it_holds_the_spark_side_and_no_secrets_of_the_other(tmp_path):
    names = zipfile.ZipFile(build_archive(tmp_path / "a.zip")).namelist()

    assert "airflow_eos/core/checkpoint/decisions.py" in names
    assert "airflow_eos/kafka/sink.py" in names
    assert not [n for n in names if "operators" in n or "__pycache__" in n or n.endswith("cli.py")]


def test_it_works_alone_where_airflow_is_not_installed(tmp_path):
    """Imported from the zip, with Airflow and Spark made impossible to import."""
    archive = build_archive(tmp_path / "airflow_eos.zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "sys.modules['airflow'] = sys.modules['pyspark'] = None\n"
        "import airflow_eos.core.recovery.execute, airflow_eos.arrow.producer.writer, airflow_eos\n"
        "assert sys.argv[1] in airflow_eos.__file__, airflow_eos.__file__\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"as \.zip"):
        build_archive(tmp_path / "a.tar")
