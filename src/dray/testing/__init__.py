"""What dray is tested with, importable so that other brokers can be held to the same."""
