"""Figures from recorded rows. Imports nothing that runs a kernel; rows come in through ``harness.rows`` only."""
