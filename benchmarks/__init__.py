"""Measurements, each beside a peer or a bound taken in the same run."""
