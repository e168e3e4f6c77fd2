"""The webhook's serving certificate: where it comes from, and when the API server trusts it."""
