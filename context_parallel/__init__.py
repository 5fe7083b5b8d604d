"""Context parallelism: who computes which rows and needs which keys, worked out by every rank for itself.

Pure functions of the mask and of the group's shape, in NumPy: nothing here communicates and nothing here runs on a device.
Imports ``masks`` only.
"""
