"""The checker of histories that the chaos tests record."""
