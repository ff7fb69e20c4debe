"""Tests of the dashboard, the alerts, and the metrics that both use."""
