"""Transactions by identity: listed, ended, asked about, settled, owned; by any process."""
