"""The kinds of sink, in one folder each: its participant, its sink and its task writer."""
