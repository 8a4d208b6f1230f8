"""Configurations of VISSL as settings of raysl."""
