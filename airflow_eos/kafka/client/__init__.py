"""Talking to brokers: settings, connections, requests, and what their answers mean."""
