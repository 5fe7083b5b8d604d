"""Alarms: did anything get slower? Recorded rows against a baseline, and a rerun of two builds where they cannot tell."""
