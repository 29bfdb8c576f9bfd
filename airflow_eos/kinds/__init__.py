"""The kinds of sink, one folder each: participant, ledger, sink, task, options."""
