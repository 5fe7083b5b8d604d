"""The report: one self-contained HTML file made from rows (`python -m harness.report [RESULTS_DIR]`)."""
