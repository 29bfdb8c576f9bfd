"""Recovery of open work: :mod:`.plan`, then :mod:`.facts` and :mod:`.execute`."""
