"""The worker process with the fake competitors installed."""

import fake_backends

from harness.worker import main

fake_backends.install()
main()
