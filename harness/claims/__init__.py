"""The paper's claims against recorded rows: reproduced, not reproduced or not run here (`python -m harness.claims`)."""
