"""The waiting half of the deferrable sensors."""
