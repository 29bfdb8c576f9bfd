"""Counts people whose ``identifyNumber`` has 18 characters, in windows of 20 s, to a second topic.

This is the example job that Flink's documents use: Avro through a schema registry, streamed. A
``read_committed`` reader sees a window when its batch is settled, a ``read_uncommitted`` one when a
task has written it.

Spark's ``from_avro`` reads plain Avro and knows no registry: a registry's records begin with five
bytes, a zero and the schema's id. Each id that the registry has for the topic is decoded by its own
schema into the newest one. A record with any other id is never guessed at: it goes, as it
came, to the dead letters. The registry is read when the app starts; a schema that is registered
later counts from the next start. Schemas that refer to others are not resolved.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,\
org.apache.spark:spark-avro_2.13:4.2.0 avro_windows.py --registry http://localhost:8081 \
        --bootstrap-servers localhost:9092 --checkpoint /data/checkpoints/avro-windows

A window is written once, when the watermark has passed its end: late rows are dropped, and the
last windows stay in the state until newer rows arrive.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.avro.functions import from_avro

from airflow_eos.errors import ConfigurationError, Remedy
from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf

IDENTIFY_NUMBER_LENGTH = 18
USER_INFO, TOKEN = "SCHEMA_REGISTRY_USER_INFO", "SCHEMA_REGISTRY_TOKEN"
"""Environment variables with the login of a registry, ``user:password`` or a bearer token: a
command line is printed."""
_MOST_BYTES = 16 << 20  # of one answer of the registry


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Count valid identities in windows.", prefix="avro-windows")
    parser.add_argument("--registry", default="http://localhost:8081", help="schema registry")
    parser.add_argument("--input-topic", default="people")
    parser.add_argument("--output-topic", default="people.valid")
    parser.add_argument("--dead-letter-topic", default="people.rejected")
    parser.add_argument("--state-partitions", type=int, default=4, help="fixed by the first start")
    args = parser.parse_args()
    app = App.of(args)
    schemas = read_schemas(args.registry, f"{args.input_topic}-value")
    spark = (
        SparkSession.builder.appName("avro-windows")
        .config("spark.sql.session.timeZone", "UTC")
        # Spark's 200 would open 200 transactions a batch.
        .config("spark.sql.shuffle.partitions", args.state_partitions)
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    rows = app.read(spark, args.input_topic).withColumn("person", person(schemas))
    query = app.start(
        valid_identities(rows).unionByName(dead_letters(rows, args.dead_letter_topic)),
        topic=args.output_topic,
        query_name="avro-windows",
    )
    query.awaitTermination()


def read_schemas(registry: str, subject: str) -> dict[int, str]:
    """Read all schemas of a subject, by their ids, the newest last.

    Raises:
        ConfigurationError: the registry does not answer, refuses the login, or has no such subject.
    """
    try:
        url, login = _url_and_login(registry)
    except ValueError:  # its text quotes the URL, which may hold a password
        raise ConfigurationError(
            "--registry cannot be read: expected http[s]://[user:password@]host[:port][/path]."
        ) from None
    opener = build_opener(_NoRedirect)

    def get(path: str) -> Any:
        with opener.open(Request(f"{url}/{path}", headers=login), timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read(_MOST_BYTES))

    versions = f"subjects/{quote(subject, safe='')}/versions"
    try:
        found = [get(f"{versions}/{version}") for version in sorted(get(versions))]
        return {each["id"]: each["schema"] for each in found}
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        # The status, or the network's error; the body of an answer is never shown.
        status = getattr(error, "code", None)
        why = f"HTTP status {status}" if status else type(error).__name__
    raise ConfigurationError(
        f"{url} does not tell the schemas of {subject}: {why}. Expected a registry that has the "
        "subject.",
        Remedy(
            change=f"look at --registry and, where it asks for a login, at {USER_INFO} "
            f"(user:password) or {TOKEN}; register a schema first",
            start=True,
        ),
    )


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: urllib would send the login to wherever the registry redirects."""

    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""


def _url_and_login(registry: str) -> tuple[str, dict[str, str]]:
    """Split a URL into the address without its login, and the login as a header."""
    parts = urlsplit(registry)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    url = f"{parts.scheme}://{host}{port}{parts.path}".rstrip("/")
    if token := os.environ.get(TOKEN):
        return url, {"Authorization": f"Bearer {token}"}
    given = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    if who := given or os.environ.get(USER_INFO, ""):
        return url, {"Authorization": "Basic " + base64.b64encode(who.encode()).decode()}
    return url, {}


def person(schemas: Mapping[int, str]) -> Column:
    """Decode a record into the newest schema; null or without ``seenAt`` where it cannot be."""
    newest = list(schemas.values())[-1]
    options = {"avroSchema": newest, "mode": "PERMISSIVE"}
    header, body = F.expr("substring(value, 1, 5)"), F.expr("substring(value, 6)")
    return F.coalesce(
        *[
            F.when(
                header == F.lit(bytearray(b"\0" + number.to_bytes(4, "big"))),
                from_avro(body, schema, options),
            )
            for number, schema in schemas.items()
        ]
    )


def valid_identities(rows: DataFrame) -> DataFrame:
    """Count how often each valid number was seen in each window."""
    people = (
        rows.select("person.identifyNumber", "person.seenAt")
        .where(F.length("identifyNumber") == IDENTIFY_NUMBER_LENGTH)
        .withWatermark("seenAt", "20 seconds")
    )
    seen = people.groupBy(F.window("seenAt", "20 seconds"), "identifyNumber").agg(
        F.count("*").alias("seen")
    )
    value = F.to_json(F.struct("identifyNumber", "window.start", "window.end", "seen"))
    return seen.select(
        F.col("identifyNumber").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.lit(None).cast("string").alias("topic"),
    )


def dead_letters(rows: DataFrame, topic: str) -> DataFrame:
    """Select the records that cannot be decoded, as they came: a producer can send them again."""
    return rows.where("person.seenAt IS NULL").select("key", "value", F.lit(topic).alias("topic"))


if __name__ == "__main__":
    run_app(main)
