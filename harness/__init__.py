"""Asks and records: configuration, runner, gate, timing, rows, and what is made from them."""
