"""What a person is told: a recovery plan as a message that can be decided from."""
