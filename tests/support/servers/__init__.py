"""Servers that tests start on one machine."""
