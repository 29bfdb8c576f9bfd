"""Several outputs: a batch has a column for each, and the very rows each sink would get alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.core.delivery.outputs import Outputs
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks import FileSink, KafkaSink, Output

KAFKA = KafkaSink("unused:9092", topic="out", transactional_id_prefix="etl")


@pytest.fixture
def files(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path))


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1000, 1, 3).selectExpr(
        "id", "concat('k', id % 7) AS customer", "IF(id % 5 = 0, NULL, id / 4) AS amount"
    )


@dataclass
class Reported:
    """The reports of tasks that drain their rows: nothing is written anywhere."""

    by_name: dict[str, list[tuple[int, str]]]

    @classmethod
    def of(cls, outputs: Any, rows: DataFrame) -> Reported:
        found: dict[str, list[tuple[int, str]]] = {}
        for report in outputs.prepare(rows, only=()):
            found.setdefault(report.participant, []).append(report.content)
        return cls(found)


def test_each_task_reports_for_each_output_what_that_sink_alone_would_report(orders, files):
    """Or a replay, which writes for one of them alone, would never pair with what was promised."""
    outputs = Outputs(
        (
            Output("keyed", KAFKA, rows=["customer AS key", "to_json(struct(*)) AS value"]),
            Output("table", files, rows=["id", "customer", "amount"]),
            Output(
                "sides",
                files,
                rows="array(struct('to' AS side, id AS of), struct('from' AS side, id AS of))",
            ),
            Output("paid", files, rows=F.when(F.expr("amount > 100"), F.struct("amount", "id"))),
        )
    )
    rows = outputs.rows(orders)
    together = Reported.of(outputs, rows).by_name
    for name in outputs.names:
        part = outputs.part(name)
        alone = Reported.of(part, part.rows(rows)).by_name
        assert together[name] == alone[name], name
    assert [sum(n for n, _ in together[name]) for name in outputs.names] == [1000, 1000, 2000, 480]
    assert len({content for name in together for _, content in together[name]}) == 4 * 3


def test_rows_of_an_output_keep_the_order_of_the_input_and_a_null_is_no_row(orders, files):
    spread = F.expr("IF(id % 2 = 0, array(struct(id, 1 AS n), NULL, struct(id, 2 AS n)), NULL)")
    outputs = Outputs((Output("spread", files, rows=spread),))
    rows = outputs.rows(orders.limit(6))
    found = outputs.part("spread").rows(rows).collect()
    assert [tuple(row) for row in found] == [(i, n) for i in (0, 2, 4) for n in (1, 2)]


def test_rows_may_be_a_function_of_the_query(orders, files):
    outputs = Outputs((Output("table", files, rows=lambda df: [df.id, df.amount.alias("paid")]),))
    rows = outputs.part("table").rows(outputs.rows(orders))
    assert rows.columns == ["id", "paid"]


def test_without_rows_all_columns_go_there(orders, files):
    outputs = Outputs((Output("table", files),))
    rows = outputs.part("table").rows(outputs.rows(orders))
    assert Counter(rows.collect()) == Counter(orders.collect())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("id", "Output 'table': its rows are of type bigint; expected a struct"),
        ("array(id)", "of type array<bigint>"),
    ],
)
def test_rows_that_are_no_rows_are_refused(orders, files, rows, message):
    with pytest.raises(ConfigurationError, match=message):
        Outputs((Output("table", files, rows=rows),)).rows(orders)


def test_columns_that_a_sink_cannot_take_are_refused_as_if_it_were_alone(orders):
    with pytest.raises(ConfigurationError, match="no column 'value'"):
        Outputs((Output("keyed", KAFKA, rows=["id AS key"]),)).rows(orders)


@pytest.mark.parametrize("name", ["table", "Table"])
def test_each_name_is_given_once(files, name):
    """Where a disk or a database knows no case, one would abort what the other has prepared."""
    with pytest.raises(ConfigurationError, match="each name once"):
        Outputs((Output("table", files), Output(name, KAFKA)))


@pytest.mark.parametrize(
    "wide",
    [
        ["sum(id) AS total"],
        lambda _: F.struct(F.count("*").alias("many")),
        ["id", "row_number() OVER (ORDER BY id) AS nr"],
        lambda _: F.explode(F.expr("array(struct(id), struct(id))")),
    ],
)
def test_rows_that_are_not_of_one_row_of_the_input_are_refused(orders, files, wide):
    """In the output modes complete and update Spark would aggregate all of it without a word."""
    outputs = Outputs((Output("totals", files, rows=wide),))
    with pytest.raises(ConfigurationError, match=r"Output 'totals': .*aggregate before"):
        outputs.rows(orders)


def test_an_input_that_was_aggregated_before_is_taken(orders, files):
    totals = orders.groupBy("customer").agg(F.sum("amount").alias("total"))
    outputs = Outputs((Output("totals", files), Output("names", files, rows=["customer"])))
    assert outputs.rows(totals).count() == 7
