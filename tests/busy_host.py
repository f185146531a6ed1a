"""Tests of what a link achieves, on a host that others use too."""

import pytest

may_be_slowed = pytest.mark.flaky(reruns=5, reruns_delay=3, only_rerun="AssertionError")
"""Measures anew where the test's assertions fail: a busy host slows a link and its workers for a
while, but a wrong link stays wrong.
"""
