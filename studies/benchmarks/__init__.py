"""The figures that the project must reach, measured here."""
