"""A whole run with fake competitors, as a process of its own that a test can kill: RESULTS KERNELS ROUNDS."""

import sys
from pathlib import Path

import fake_backends
from fake_problem import group, options

from harness.runner import run

fake_backends.install()
results, kernels, rounds = Path(sys.argv[1]), tuple(sys.argv[2].split(",")), int(sys.argv[3])
sys.exit(run([group(kernels, rounds)], options(results)))
