"""Answers to a fetch as a hostile broker, or a faulty proxy, may send them: see ``__main__``."""
