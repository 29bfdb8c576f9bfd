"""Writes an app's input: ``python -m demo.inputs word_count -b localhost:9092 --topic lines``.

A row depends on its number alone, so the same command writes the same rows again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from demo.registry import Encoder

Row = tuple[str, str | bytes]
BEGIN = datetime(2026, 11, 23, 10, tzinfo=UTC)
LINES = ("Exactly once, once and for all:", "once is enough", "für alle, à la carte — once")
SEEN_AT = {"name": "seenAt", "type": {"type": "long", "logicalType": "timestamp-millis"}}
PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [*({"name": name, "type": "string"} for name in ("name", "identifyNumber")), SEEN_AT],
}


def line(number: int) -> Row:
    """Make a line of text for word_count."""
    return "", LINES[number % len(LINES)]


def view(number: int) -> Row:
    """Make a page view of one of two apps; five of six are of app1."""
    return "user", json.dumps({"app": "app2" if number % 6 == 0 else "app1"})


def transfer(number: int) -> Row:
    """Make a transfer between seven accounts; one with payer = payee is for the dead letters."""
    payer, payee = f"a-{number % 7}", f"a-{(number * 3 + 1) % 7}"
    told = {"transfer": f"t-{number}", "payer": payer, "payee": payee, "amount": 1 + number % 50}
    return payer, json.dumps(told)


def person(number: int) -> dict[str, object]:
    """Make one of seven people; the number of every seventh is a digit short."""
    whole = f"1101011990030700{number % 7:02}"
    return {
        "name": f"person {number % 7}",
        "identifyNumber": whole if number % 7 else whole[:-1],
        "seenAt": BEGIN + timedelta(seconds=number),
    }


def log_line(number: int) -> Row:
    """Make a log line of one of five hosts, within three days."""
    at, host = BEGIN + timedelta(days=number % 3, seconds=number), f"web-{number % 5}"
    return host, json.dumps({"at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "host": host, "number": number})


def reading(number: int) -> Row:
    """Make a reading of five sensors, one a second; ``s-4`` is silent every other five minutes."""
    at, sensor = BEGIN + timedelta(seconds=number), f"s-{number % 5}"
    if sensor == "s-4" and number // 300 % 2:
        sensor = "s-3"
    told = {"sensor": sensor, "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "celsius": 20 + number % 10}
    return sensor, json.dumps(told)


def message(number: int) -> Row:
    """Make a message with a unique id; every fifth is sent again as the next row."""
    of = number - 1 if number % 5 == 1 else number
    at = BEGIN + timedelta(seconds=of)
    return "device", json.dumps({"id": f"m-{of}", "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "number": of})


MADE: dict[str, Callable[[int], Row]] = {
    "word_count": line,
    "page_views": view,
    "transfers": transfer,
    "log_sync": log_line,
    "sensors": reading,
    "deduplicate": message,
}


def write(
    app: Annotated[str, typer.Argument(help=f"{', '.join(MADE)} or avro_windows")],
    topic: Annotated[str, typer.Option(help="Where to.")],
    bootstrap_servers: Annotated[str, typer.Option("--bootstrap-servers", "-b")],
    rows: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    rate: Annotated[float, typer.Option(min=0.1, help="Rows a second.")] = 100,
    registry: Annotated[str, typer.Option(help="For Avro.")] = "http://localhost:8081",
) -> None:
    """Write rows for an example app."""
    from confluent_kafka import Producer

    if app == "avro_windows":
        encode = Encoder(registry, f"{topic}-value", PERSON)
        make: Callable[[int], Row] = lambda number: ("", encode(person(number)))  # noqa: E731
    elif app in MADE:
        make = MADE[app]
    else:
        raise typer.BadParameter(f"{app!r}: expected {', '.join(MADE)} or avro_windows")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(rows):
        key, value = make(number)
        producer.produce(topic, key=key, value=value)
        producer.poll(0)
        time.sleep(1 / rate)
    if left := producer.flush(30):
        raise typer.BadParameter(f"{bootstrap_servers} did not take {left} of {rows} rows")


if __name__ == "__main__":
    typer.run(write)
