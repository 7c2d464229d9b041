"""Bridges to other packages, each imported only on request."""
