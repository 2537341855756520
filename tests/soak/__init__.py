"""Long random tests of a local place: ``python -m tests.soak`` (docs/testing.md)."""
