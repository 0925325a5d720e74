"""Sourced hardware facts as CSV files."""
