"""What the README and the example DAG say to type works with the Spark that the extra brings."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [
    "README.md",
    "dags/eos_examples.py",
    "dags/eos_orders.py",
    "docs/airflow.md",
    "docs/examples.md",
    "spark_apps/avro_windows.py",
    "spark_apps/orders_etl.py",
]
EXTRA = re.search(r'"pyspark==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
PINNED = EXTRA[1] if EXTRA else None

of_the_pinned_spark = pytest.mark.skipif(
    version("pyspark") != PINNED, reason="the examples name the version that the extra pins"
)


@of_the_pinned_spark
@pytest.mark.parametrize("text", TEXTS)
def test_the_packages_that_an_example_names_fit_pyspark_and_its_hadoop(text):
    [client] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    named = (ROOT / text).read_text()
    for connector in re.findall(r"spark-sql-kafka-0-10_2\.13:([\d.]+\d)", named):
        assert connector == PINNED
    for avro in re.findall(r"spark-avro_2\.13:([\d.]+\d)", named):
        assert avro == PINNED
    for aws in re.findall(r"hadoop-aws:([\d.]+\d)", named):
        assert aws == hadoop


@pytest.mark.parametrize("text", [*TEXTS, "airflow_eos/commands/options.py"])
def test_no_example_uses_a_scheme_that_plain_spark_does_not_know(text):
    """Spark's S3 is s3a://, in hadoop-aws; s3:// is Amazon's own EMR."""
    assert "s3://" not in (ROOT / text).read_text()


def test_every_python_block_of_the_readme_can_be_parsed():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        ast.parse(block)
