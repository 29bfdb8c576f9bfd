"""The kinds of sink, one folder each: participant, sink, task."""
