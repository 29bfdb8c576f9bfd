"""Benchmarks: ``python -m benchmarks NAME``, or ``make bench NAME=…``.

Each compares variants within one run, in turns, and checks what was written before it prints a
figure. ``results/NAME.json`` has the raw figures; ratios carry over to other machines, absolute
figures do not.
"""
