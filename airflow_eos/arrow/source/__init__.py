"""The Arrow source: :mod:`.kafka` (its settings), :mod:`.stream` (planning), :mod:`.task`."""
