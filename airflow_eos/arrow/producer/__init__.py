"""The transactional writer that encodes Arrow rows as record batches itself."""
