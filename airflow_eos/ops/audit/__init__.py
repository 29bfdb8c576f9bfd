"""An independent look at what was delivered: it trusts nothing of the delivery."""
