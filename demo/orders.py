"""Makes realistic orders for the demo: the same for the same seed, some of them malformed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

ORDER_ID_HEADER = "order-id"
"""Header with an order's id, even where its value is not JSON; the audit tells orders by it."""

_CHUNK = 10_000
_FIRST = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
_COUNTRIES = ("DE", "AT", "CH", "FR", "GB", "US", "PL", "NL")
_CURRENCIES = ("EUR", "EUR", "CHF", "EUR", "GBP", "USD", "PLN", "EUR")
_MALFORMED_EVERY = 50


@dataclass(frozen=True, slots=True)
class Order:
    """One order as a Kafka message."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def orders(count: int, *, seed: int = 7, customers: int = 5_000) -> Iterator[Order]:
    """Make ``count`` orders; few customers order often, most of them rarely; 2 % are malformed."""
    rng = np.random.default_rng(seed)
    encode = msgspec.json.Encoder().encode
    for first in range(0, count, _CHUNK):
        chunk = _Chunk.draw(rng, min(_CHUNK, count - first), customers)
        for at, (value, spoil) in enumerate(chunk.rows(first)):
            data = encode(value)
            yield Order(
                key=value["customer_id"].encode(),
                value=data if spoil is None else spoil(data),
                headers=((ORDER_ID_HEADER, f"o-{first + at:07}".encode()),),
            )


def write_orders(
    bootstrap_servers: str, topic: str, count: int, on_written: Callable[[int], None]
) -> None:
    """Write ``count`` orders to ``topic``; pass the number so far to ``on_written`` now and then.

    Raises:
        KafkaException: the broker did not take them.
    """
    from confluent_kafka import KafkaException, Producer

    failures: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            # librdkafka's default spreads keys otherwise than every Java client
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 50,
            "log_level": 3,  # without warnings that a new broker still loads its coordinator
            "queue.buffering.max.messages": 2 * _CHUNK,
        }
    )
    for written, order in enumerate(orders(count), start=1):
        while True:
            try:
                producer.produce(
                    topic,
                    order.value,
                    order.key,
                    headers=list(order.headers),
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if written % _CHUNK == 0:
            producer.poll(0)
            on_written(written)
    producer.flush()
    if failures:
        raise KafkaException(failures[0])
    on_written(count)


def _cut_short(value: bytes) -> bytes:
    return value[: len(value) // 2]


def _no_json(_value: bytes) -> bytes:
    return b"<order>sent by the old shop</order>"


def _no_customer(value: bytes) -> bytes:
    return value.replace(b'"customer_id":', b'"client":')


def _negative(value: bytes) -> bytes:
    return value.replace(b'"quantity":', b'"quantity":-')


_WAYS_TO_SPOIL = (_cut_short, _no_json, _no_customer, _negative)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The random numbers of some orders, drawn at once: 200,000 orders take two seconds."""

    customer: npt.NDArray[np.int64]
    country: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    sku: npt.NDArray[np.int64]
    quantity: npt.NDArray[np.int64]
    cents: npt.NDArray[np.int64]
    spoiled: npt.NDArray[np.int64]

    @classmethod
    def draw(cls, rng: np.random.Generator, size: int, customers: int) -> _Chunk:
        """Draw ``size`` orders of ``customers`` customers."""
        lines = 3
        return cls(
            # squared: the first customers order hundreds of times, the last ones a few
            customer=(rng.random(size) ** 2 * customers).astype(np.int64),
            country=rng.integers(0, len(_COUNTRIES), size),
            items=rng.integers(1, lines + 1, size),
            sku=rng.integers(1_000, 10_000, (size, lines)),
            quantity=rng.integers(1, 6, (size, lines)),
            cents=rng.integers(99, 50_000, (size, lines)),
            spoiled=rng.integers(0, _MALFORMED_EVERY * len(_WAYS_TO_SPOIL), size),
        )

    def rows(self, first: int) -> Iterator[tuple[dict[str, Any], Callable[[bytes], bytes] | None]]:
        """Yield each order, with how to spoil it if it is one of the malformed."""
        for at, customer in enumerate(self.customer.tolist()):
            country = int(self.country[at])
            lines = zip(
                self.sku[at].tolist(),
                self.quantity[at].tolist(),
                self.cents[at].tolist(),
                strict=True,
            )
            yield (
                {
                    "order_id": f"o-{first + at:07}",
                    "customer_id": f"c-{customer:05}",
                    "placed_at": (_FIRST + timedelta(milliseconds=37 * (first + at))).isoformat(),
                    "country": _COUNTRIES[country],
                    "currency": _CURRENCIES[country],
                    "email": f" Customer.{customer}@Example.com",
                    "items": [
                        {"sku": f"sku-{sku}", "quantity": quantity, "unit_price": cents / 100}
                        for sku, quantity, cents in list(lines)[: int(self.items[at])]
                    ],
                },
                _spoiler(int(self.spoiled[at])),
            )


def _spoiler(drawn: int) -> Callable[[bytes], bytes] | None:
    return _WAYS_TO_SPOIL[drawn] if drawn < len(_WAYS_TO_SPOIL) else None
