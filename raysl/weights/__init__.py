"""Weights in from and out to the libraries and official code of others.

`raysl.weights.convert` has the function behind `raysl convert`, `raysl.weights.layouts` the layouts that are known.
"""
