"""The webhook's serving certificate: its sources, and when the API server trusts it."""
