"""Delivery of a batch through the protocol, whatever kind its sinks are of."""
