"""Tests of the scripts that measure other libraries."""
