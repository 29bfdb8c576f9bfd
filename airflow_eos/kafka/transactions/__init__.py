"""List, end, look up, settle and own transactions by their identity, from any process."""
