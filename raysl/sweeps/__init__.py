"""Sweeps: what is searched, how trials are drawn and judged, and the trials themselves, on Ray Tune."""
