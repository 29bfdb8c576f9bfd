"""What tables of data files and a log have in common: :mod:`.participant` is the port.

A task writes a data file that the table does not name; the decision's commit adds it to the log,
in one step with the witness.
"""
