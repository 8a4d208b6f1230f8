"""Faults that happen to raysl from outside, on real processes; each test writes a row of `docs/faults.md`."""
