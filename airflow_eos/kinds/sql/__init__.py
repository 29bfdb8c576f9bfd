"""What the kinds that speak SQL have in common."""
