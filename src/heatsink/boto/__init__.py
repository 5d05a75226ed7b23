"""Heatsink for an existing DynamoDB table, with the calls of boto3's Table."""

from .table import Table

__all__ = ["Table"]
