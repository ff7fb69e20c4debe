"""Tests of the launchers: Slurm, Kubernetes, torchrun, containers."""
