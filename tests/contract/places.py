"""Which places a test of the contract runs at. All, where it does not say so by one of these marks."""

from __future__ import annotations

import pytest

_CLUSTER = pytest.param("kubernetes", marks=pytest.mark.cluster)

ALL = ["memory", "local", _CLUSTER]

decides_itself = pytest.mark.parametrize("backend", ["memory", "local"], indirect=True)
"""Who starts first is the place's own decision; in a cluster it is the scheduler's or Kueue's."""

in_a_cluster = pytest.mark.parametrize("backend", [_CLUSTER], indirect=True)
"""Another scheduler decides there."""

really_runs = pytest.mark.parametrize("backend", ["local", _CLUSTER], indirect=True)
"""Programs are processes there."""

runs_several = pytest.mark.parametrize("backend", ["memory", _CLUSTER], indirect=True)
"""A Workload may have more than one replica there."""

on_this_machine = pytest.mark.parametrize("backend", ["local"], indirect=True)
"""Programs, and the files that speak of them, can be looked at from here."""

virtual = pytest.mark.parametrize("backend", ["memory"], indirect=True)
"""Time is virtual there."""
