"""The demo's orders: realistic, reproducible, each with a name even where it is malformed."""

from __future__ import annotations

import json
from collections import Counter

from demo.orders import ORDER_ID_HEADER, orders

COUNT = 20_000


def is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def test_the_same_seed_gives_the_same_orders():
    assert list(orders(500)) == list(orders(500))
    assert list(orders(500)) != list(orders(500, seed=8))


def test_every_order_has_a_name_of_its_own_whatever_its_value_is():
    names = {dict(order.headers)[ORDER_ID_HEADER] for order in orders(COUNT)}

    assert len(names) == COUNT


def test_about_two_percent_are_malformed_in_four_ways():
    made = list(orders(COUNT))
    ways = Counter(
        "cut short or no JSON"
        if not is_json(order.value)
        else "no customer"
        if b'"customer_id"' not in order.value
        else "negative"
        if b'"quantity":-' in order.value
        else "fine"
        for order in made
    )

    assert 0.015 * COUNT < COUNT - ways.pop("fine") < 0.025 * COUNT
    assert set(ways) == {"cut short or no JSON", "no customer", "negative"}


def test_keys_repeat_so_that_their_order_can_be_checked():
    keys = Counter(order.key for order in orders(COUNT))

    assert len(keys) < COUNT / 4
    assert keys.most_common(1)[0][1] > 100
