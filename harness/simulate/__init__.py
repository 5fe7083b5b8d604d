"""Context parallelism without the GPUs: a discrete-event model of the ranks of a plan on a described cluster.

``rates`` and ``cluster`` are what the model is told, ``fit`` makes the rates from recorded rows; ``steps``, ``network`` and
``engine`` are the clock; ``loads``, ``moves``, ``gathered``, ``staged`` and ``rings`` say what every rank does, in the order
of the runtime; ``model`` is the answer. ``asked``, ``backend`` and ``run`` bring it into the harness, ``validate`` holds it
against measured rows. Nothing here is a measurement, and every row says so: ``docs/simulator.md``.
"""
