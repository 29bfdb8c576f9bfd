"""Code that Delta and Iceberg tables share (data files and a log); :mod:`.participant` is the port.

A task writes a data file that the table does not name; the decision's commit adds it to the log,
in one step with the witness.
"""
