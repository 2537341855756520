"""The code that speaks to one kind of Place each. `base` is the contract."""
