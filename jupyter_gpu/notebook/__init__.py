"""The way in from a notebook: `%gpu`."""
