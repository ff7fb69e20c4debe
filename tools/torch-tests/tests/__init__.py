"""Tests of the runner of PyTorch's own test cases."""
