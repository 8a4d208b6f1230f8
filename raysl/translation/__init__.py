"""Configurations of other libraries as settings of raysl."""
