"""Tests of gputile.kube."""
