"""Tests of the Python client against real daemons."""
