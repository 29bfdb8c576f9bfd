"""Record batches as bytes, from Arrow columns and back (message format 2)."""
