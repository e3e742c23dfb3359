"""Datasets for trainers, one module per format."""
