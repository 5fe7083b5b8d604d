"""What the rules of measuring are worth: experiments in which one rule is kept and broken by turns (docs/method.md).

Each takes the same timer, kernels and gate as the harness. ``experiments`` says what is done, ``bench`` how a reading is taken,
``readings`` keeps them in a file, ``table`` sums them up. No figure of the project comes from here. ``cards`` reads what rows
of several cards of one model say about each other.
"""
