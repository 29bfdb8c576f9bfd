"""Code that the kinds for SQL databases share."""
