"""The process of a build with the fake competitors installed, and the fake worker."""

import sys
from pathlib import Path

import fake_backends

from harness.compare.turn import serve

fake_backends.install()
sys.exit(serve(worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py")))))
