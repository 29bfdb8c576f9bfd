"""Communication with brokers: settings, connections, requests, and the meaning of responses."""
