"""A turn of a build with the fake competitors installed, and the fake worker."""

import json
import sys
from pathlib import Path

import fake_backends

from harness.compare.turn import take

fake_backends.install()
sys.exit(take(json.load(sys.stdin), worker=(sys.executable, str(Path(__file__).with_name("fake_worker.py")))))
