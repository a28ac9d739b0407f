"""Strangers' Python, confined: tenants' reward functions and completions that are programs. See README.md."""
