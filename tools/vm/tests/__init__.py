"""Tests of the runner of kernels: what needs no machine."""
